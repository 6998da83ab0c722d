"""Train with a script or command of your own.

python -m kubetrain_trainer.tensorflow_multiworker.own_code --data-dir DATA --output-dir OUTPUT \
    --entry '{"script": "train.py"}'
"""

from kubetrain_trainer.entry_point import run, training_arguments
from kubetrain_trainer.own_code import train_with_own_code
from kubetrain_trainer.tensorflow_multiworker.keras_fit import repair_when_imported

if __name__ == "__main__":
    repair_when_imported()
    run(lambda: train_with_own_code(training_arguments("Train with your own TensorFlow script."), "tensorflow"))
