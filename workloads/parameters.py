"""The parameters of the one training loop, as every workload that uses the loop declares them; no torch."""

from __future__ import annotations

from workloads.manifest import ParameterInfo

LAMB_PACKAGE = "pytorch_optimizer"
LAMB_REMEDY = "the optimizer lamb comes from a package that is not here: pip install 'x5tune[lamb]'"

_LOOP = (
    ParameterInfo("lr", "number", "Peak learning rate, reached at the end of the warm-up.", 1e-3, 0.0, 1e3, True),
    ParameterInfo("batch_size", "integer", "Samples per optimizer step (micro-batch x accumulation).", 64, 1, 65536),
    ParameterInfo(
        "weight_decay",
        "number",
        "As torch.optim means it (AdamW: decoupled, times lr; SGD: added to the gradient); not on biases and norms.",
        0.01,
        0.0,
        10.0,
    ),
    ParameterInfo(
        "loss_scale",
        "number_or_choice",
        "Initial fp16 loss scale; auto starts at 2048 and calibrates in the first 100 steps. Unused in fp32 and bf16.",
        "auto",
        1.0,
        2.0**24,
        choices=("auto",),
    ),
    ParameterInfo(
        "grad_clip",
        "number_or_mapping",
        "Largest gradient norm; {relative: r} is r times the largest norm of the first 5 % of the run, which is "
        "not clipped; null does not clip.",
        1.0,
        0.0,
        1e6,
        True,
        nullable=True,
        keys=("relative",),
    ),
    ParameterInfo(
        "warmup",
        "number_or_mapping",
        "Linear warm-up: a fraction of the horizon, or {steps, start} or {fraction, start} with the learning rate it "
        "starts from.",
        0.06,
        0.0,
        1.0,
        keys=("steps", "fraction", "start"),
        optional_keys=("start",),
        one_of=("steps", "fraction"),
    ),
    ParameterInfo("optimizer", "choice", "The update rule.", "adamw", choices=("adamw", "sgd", "adafactor", "lamb")),
    ParameterInfo("beta1", "number", "AdamW, LAMB: decay of the first moment.", 0.9, 0.0, 0.9999),
    ParameterInfo("beta2", "number", "AdamW, LAMB: decay of the second moment.", 0.999, 0.0, 0.99999),
    ParameterInfo("eps", "number", "AdamW, LAMB: added to the denominator.", 1e-8, 0.0, 1.0, True),
    ParameterInfo("momentum", "number", "SGD: momentum.", 0.9, 0.0, 0.9999),
    ParameterInfo("lr_min", "number", "Learning rate at the end of the cosine, at most lr.", 0.0, 0.0, 1e3),
)

DROPOUT = ParameterInfo("dropout", "number", "Dropout before the last layer.", 0.0, 0.0, 0.95)
FOCAL_GAMMA = ParameterInfo(
    "focal_gamma", "number", "Focal loss: how much less easy samples count; 0 is cross entropy.", 0.0, 0.0, 10.0
)
LABEL_SMOOTHING = ParameterInfo("label_smoothing", "number", "Of the training loss only.", 0.0, 0.0, 0.95)


def loop_parameters(*own: ParameterInfo) -> dict[str, ParameterInfo]:
    """The loop's parameters by name, with a workload's `own` added, or put in the place of one of that name."""
    return {info.name: info for info in (*_LOOP, *own)}
