"""Rules about programs that cannot run: what they lack, and what does not fit the machine."""

from kubetrain_pipelines.diagnose.rule import Certainty, Rule, Sample

RULES = (
    Rule(
        name="missing-module",
        title="A Python module is missing",
        texts=("ModuleNotFoundError: No module named", "error: module '"),
        explanation="The image does not have what the code imports, or the code itself was not brought.",
        remedy="Add the package to the image, or to the requirements of your own; bring your code with --code DIR.",
        samples=(
            Sample(
                "ModuleNotFoundError: No module named 'timm_of_mine'",
                "provoked by tests: an import of a missing module",
            ),
        ),
    ),
    Rule(
        name="no-program",
        title="The program or script does not exist",
        texts=(
            "executable file not found in $PATH",
            ": command not found",
            "sh: *: not found",
            "can't open file '*': [Errno 2]",
            "train.entry: there is no script '",
            "train.entry: there is no program '",
        ),
        explanation="The image does not have it, or not where the command looks for it.",
        remedy="Name the path that the file has in the image, add the program to the image, or bring your code with "
        "--code DIR. Scripts are looked for from the folder in which the command runs.",
        samples=(
            Sample("python: can't open file '/work/nofile.py': [Errno 2] No such file or directory", "CPython 3.11"),
            Sample("/bin/sh: 1: torchrun: not found", "dash, the shell of Debian"),
        ),
    ),
    Rule(
        name="wrong-arguments",
        title="The program does not know its arguments",
        texts=(": error: unrecognized arguments: ", ": error: the following arguments are required: "),
        explanation="The command passes options that the program does not have, or lacks some that it needs.",
        remedy="Compare the arguments of the command with what the program says with --help.",
        samples=(Sample("train.py: error: unrecognized arguments: --learning-rate 3", "argparse of CPython 3.11"),),
    ),
    Rule(
        name="wrong-cpu",
        title="The program is for another CPU",
        texts=("exec format error", "Exec format error", "Signal 4 (SIGILL) received by PID", "Illegal instruction"),
        explanation="The image is for another architecture, or a library uses instructions that this CPU lacks.",
        remedy="Build the image for the architecture of the nodes (`docker build --platform linux/amd64`), or choose "
        "nodes that fit it by nodeSelector of pods.pod.",
        samples=(
            Sample("exec /usr/local/bin/python: exec format error", "the container runtime"),
            Sample("  traceback : Signal 4 (SIGILL) received by PID 27344", "torchrun of PyTorch 2.15"),
        ),
    ),
    Rule(
        name="crash",
        title="A library crashed",
        certainty=Certainty.LIKELY,
        texts=("Segmentation fault", "Signal 11 (SIGSEGV) received by PID", "exit code 139"),
        explanation="Code that is not Python accessed memory that it does not own, often because libraries do not fit "
        "together.",
        remedy="Set PYTHONFAULTHANDLER, `--set pods.env.PYTHONFAULTHANDLER=1`: the log then shows the lines of Python "
        "that were running. Compare the versions of the library with those that it was built for.",
        samples=(
            Sample("Fatal Python error: Segmentation fault", "CPython 3.11 with PYTHONFAULTHANDLER"),
            Sample("  traceback : Signal 11 (SIGSEGV) received by PID 27344", "torchrun of PyTorch 2.15"),
        ),
    ),
)
