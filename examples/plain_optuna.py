"""x5tune's search in a plain Optuna study: no service, no Ray.

pip install 'x5tune[worker]'
python examples/plain_optuna.py
"""

import math

import optuna

import x5tune

EPOCHS = 30


def objective(trial: optuna.Trial) -> float:
    """A stand-in for training: the loss falls towards what the configuration can reach."""
    lr = trial.suggest_float("lr", 1e-5, 1.0, log=True)
    width = trial.suggest_int("width", 16, 512, log=True)
    optimizer = trial.suggest_categorical("optimizer", ["adamw", "sgd"])
    reachable = (math.log10(lr) + 2.5) ** 2 + abs(math.log2(width / 128)) / 4 + (optimizer == "sgd") * 0.5
    loss = math.inf
    for epoch in range(1, EPOCHS + 1):
        loss = reachable + math.exp(-epoch / 8)
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


def main(trials: int = 60) -> optuna.Study:
    study = optuna.create_study(
        sampler=x5tune.FreezeThawSampler(last_step=EPOCHS, seed=0),
        pruner=x5tune.FreezeThawPruner(last_step=EPOCHS),
    )
    study.optimize(objective, n_trials=trials)
    return study


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = main()
    print(f"best: {found.best_value:.3f} with {found.best_params}")
    print(f"epochs trained: {sum(len(trial.intermediate_values) for trial in found.trials)} of {60 * EPOCHS}")
