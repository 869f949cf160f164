"""The built-in workloads' descriptions of themselves; no torch, so that the API process can read them."""

from __future__ import annotations

from workloads.manifest import Manifest, ParameterInfo
from workloads.parameters import DROPOUT, FOCAL_GAMMA, LABEL_SMOOTHING, loop_parameters

SAVES = ("works", "fails", "hangs", "dies")
HEALTH = (
    "train_loss", "grad_norm", "lr", "update_ratio", "clip_share", "norm_jumps", "noise_scale", "loss_scale",
    "skipped_steps",
)  # fmt: skip
"""What the training loop reports besides a workload's own metrics (`workloads.health`); the last two in fp16 only."""

DIGITS_CNN = Manifest(
    name="digits-cnn",
    summary="A small convolutional network on 8x8 images of handwritten digits; one run takes about a second.",
    entry="workloads.digits:DigitsCNN",
    metric="val_loss",
    direction="minimize",
    metrics=("val_loss", "val_accuracy", *HEALTH),
    parameters=loop_parameters(DROPOUT, LABEL_SMOOTHING, FOCAL_GAMMA),
    search={
        "lr": {"low": 1e-4, "high": 1.0, "log": True},
        "batch_size": {"choices": [16, 32, 64, 128, 256]},
        "weight_decay": {"low": 1e-5, "high": 0.3, "log": True, "or_zero": True},
    },
    baseline={"lr": 1e-3, "batch_size": 64, "weight_decay": 0.01},
    fidelity={"axis": "samples", "max": 16000, "reports": 20},
    train_samples=1074,
    data="UCI optical recognition of handwritten digits (test part), as packaged with scikit-learn; CC BY 4.0.",
    model_parameters=37986,
)

BYTE_LM = Manifest(
    name="byte-lm",
    summary="A small transformer on the bytes of Python's own standard library; one run takes a few seconds.",
    entry="workloads.bytelm:ByteLM",
    metric="val_loss",
    direction="minimize",
    metrics=("val_loss", "val_bits_per_byte", *HEALTH),
    parameters=loop_parameters(
        ParameterInfo("attention_dropout", "number", "Dropout of attention weights.", 0.0, 0.0, 0.95),
        ParameterInfo("dropout", "number", "Dropout after each feed-forward layer.", 0.0, 0.0, 0.95),
        LABEL_SMOOTHING,
    ),
    search={
        "lr": {"low": 1e-4, "high": 1.0, "log": True},
        "batch_size": {"choices": [8, 16, 32, 64]},
        "weight_decay": {"low": 1e-4, "high": 1.0, "log": True, "or_zero": True},
    },
    baseline={"lr": 1e-3, "batch_size": 32, "weight_decay": 0.01},
    fidelity={"axis": "tokens", "max": 262144, "reports": 20},
    train_samples=16384,
    data="The top-level modules of the running Python's standard library, split by file; PSF licence.",
    model_parameters=70592,
    tokens_per_sample=64,
)

TABULAR_MLP = Manifest(
    name="tabular-mlp",
    summary="A small dense network on the breast cancer data, 569 rows of 30 measurements; well under a second.",
    entry="workloads.tabular:TabularMLP",
    metric="val_loss",
    direction="minimize",
    metrics=("val_loss", "val_accuracy", *HEALTH),
    parameters=loop_parameters(DROPOUT, LABEL_SMOOTHING, FOCAL_GAMMA),
    search={
        "lr": {"low": 1e-4, "high": 1.0, "log": True},
        "batch_size": {"choices": [16, 32, 64, 128]},
        "weight_decay": {"low": 1e-4, "high": 1.0, "log": True, "or_zero": True},
    },
    baseline={"lr": 1e-3, "batch_size": 64, "weight_decay": 0.01},
    fidelity={"axis": "samples", "max": 6000, "reports": 20},
    train_samples=284,
    data="Breast Cancer Wisconsin (diagnostic), as packaged with scikit-learn; CC BY 4.0.",
    model_parameters=6274,
)

DIGITS_TWO_LOSSES = Manifest(
    name="digits-two-losses",
    summary="One network that names a handwritten digit and draws it again: two weighed losses.",
    entry="workloads.digits_two_losses:DigitsTwoLosses",
    metric="val_loss",
    direction="minimize",
    metrics=("val_loss", "val_accuracy", "val_reconstruction", *HEALTH),
    parameters=loop_parameters(
        ParameterInfo(
            "loss_weighting",
            "choice",
            "How the two losses are added: by learnt uncertainties, or as they are.",
            "uncertainty",
            choices=("uncertainty", "equal"),
        ),
        DROPOUT,
        LABEL_SMOOTHING,
        FOCAL_GAMMA,
    ),
    search={
        "lr": {"low": 1e-4, "high": 1.0, "log": True},
        "batch_size": {"choices": [16, 32, 64, 128, 256]},
        "weight_decay": {"low": 1e-5, "high": 0.3, "log": True, "or_zero": True},
    },
    baseline={"lr": 1e-3, "batch_size": 64, "weight_decay": 0.01},
    fidelity={"axis": "samples", "max": 16000, "reports": 20},
    train_samples=1074,
    data=DIGITS_CNN.data,
    model_parameters=13420,
)

QUADRATIC = Manifest(
    name="quadratic",
    summary="Noisy gradient descent on an ill-conditioned quadratic; instant, for trying out x5tune and for tests.",
    entry="workloads.quadratic:Quadratic",
    metric="val_loss",
    direction="minimize",
    metrics=("val_loss", "grad_norm"),
    parameters={
        info.name: info
        for info in (
            ParameterInfo("lr", "number", "Learning rate; diverges above 0.02.", 1e-3, 0.0, 1e3, True),
            ParameterInfo("batch_size", "integer", "Gradient noise falls with its root.", 64, 1, 65536),
            ParameterInfo("weight_decay", "number", "Pulls towards 0, where the data overshoot.", 0.0, 0.0, 10.0),
            ParameterInfo("sleep_seconds", "number", "For tests: sleep before every report.", 0.0, 0.0),
            ParameterInfo("print_bytes", "integer", "For tests: print so much before every report.", 0, 0),
            ParameterInfo("allocate_mib", "integer", "For tests: hold so much memory from the start.", 0, 0),
            ParameterInfo("nan_at", "integer", "For tests: the report that is NaN.", None, 1, nullable=True),
            ParameterInfo("crash_at", "integer", "For tests: raise instead of this report.", None, 1, nullable=True),
            ParameterInfo("kill_at", "integer", "For tests: SIGKILL itself at this report.", None, 1, nullable=True),
            ParameterInfo("hang_at", "integer", "For tests: sleep for ever at this report.", None, 1, nullable=True),
            ParameterInfo("save", "choice", "For tests: what a pause meets.", "works", choices=SAVES),
        )
    },
    search={
        "lr": {"low": 1e-5, "high": 1.0, "log": True},
        "batch_size": {"choices": [8, 16, 32, 64, 128]},
        "weight_decay": {"low": 1e-4, "high": 1.0, "log": True, "or_zero": True},
    },
    baseline={"lr": 1e-3, "batch_size": 64, "weight_decay": 0.0},
    fidelity={"axis": "samples", "max": 8192, "reports": 20},
    train_samples=8192,
    data="None: a formula.",
    model_parameters=8,
    needs_torch=False,
)

ALL = (DIGITS_CNN, BYTE_LM, TABULAR_MLP, DIGITS_TWO_LOSSES, QUADRATIC)
