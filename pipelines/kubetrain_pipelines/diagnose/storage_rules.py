"""Rules about disks, volumes and credentials."""

from kubetrain_pipelines.diagnose.rule import Certainty, Rule, Sample
from kubetrain_trainer.failures import DISK_REMEDIES

RULES = (
    Rule(
        name="disk-full",
        title="A disk or a quota is full",
        texts=(
            "No space left on device",
            "no space left on device",
            "Disk quota exceeded",
            "PytorchStreamWriter failed writing file",
            "usage of volume * exceeds the limit",
            "Pod ephemeral local storage usage exceeds",
            "The node was low on resource: ephemeral-storage",
        ),
        explanation="A file could not be written.",
        remedy="Find the volume in the message, and free space on it (`df -h` in a pod) or enlarge its PVC. The same "
        "run then resumes. train.keep_checkpoints limits what a training keeps.",
        samples=(
            Sample(
                "error: the checkpoint of step 4 could not be written to full/output/checkpoints (No space left on "
                "device): free space on this volume or enlarge it, then start this run again",
                "provoked by tests: a training on a disk of 1 MB",
            ),
            Sample(
                "worker-0 was evicted: Pod ephemeral local storage usage exceeds the total limit of containers 10Mi",
                "recorded on a cluster",
            ),
        ),
    ),
    Rule(
        name="disk-full-probably",
        title="A checkpoint could not be written, probably because the disk is full",
        certainty=Certainty.LIKELY,
        texts=("inline_container.cc*unexpected pos ", "basic_ios::clear: iostream error"),
        explanation="PyTorch's writer does not say why a write failed.",
        remedy="Check the free space of the volume (`df -h` in a pod), its quota and the limit on the size of files.",
        after=("disk-full",),
        samples=(
            Sample(
                "RuntimeError: [enforce fail at inline_container.cc:671] . unexpected pos 704 vs 598",
                "provoked by tests: torch.save() on a disk of 1 MB",
            ),
        ),
    ),
    Rule(
        name="permission",
        title="A file may not be accessed",
        texts=(
            "PermissionError: [Errno 13] Permission denied",
            f"(Permission denied): {DISK_REMEDIES[13]}",
            "(Permission denied): check its permissions",
            "strerror: Permission denied",
            "PermissionDeniedError: ",
            "cannot *: Permission denied",
        ),
        explanation="The user of the process does not have the rights that it needs.",
        remedy="kubetrain's pods run as the user that pods.user sets, and their volumes get its group (fsGroup). Check "
        "the owner and mode of the folder (`ls -ln`); storage that ignores fsGroup, such as NFS, needs a folder that "
        "this user may write to.",
        samples=(
            Sample(
                "PermissionError: [Errno 13] Permission denied: 'checkpoint.pt'",
                "provoked by tests: a folder of another user",
            ),
        ),
    ),
    Rule(
        name="read-only",
        title="A volume is mounted read-only",
        texts=(
            "OSError: [Errno 30] Read-only file system",
            "(Read-only file system): ",
            "strerror: Read-only file system",
        ),
        explanation="Training data is mounted read-only, and so is a file system that has met an error.",
        remedy="Write to the output folder only. If the volume should be writable, check `dmesg` of its node for "
        "errors of the file system.",
        samples=(
            Sample(
                "OSError: [Errno 30] Read-only file system: 'full/checkpoint.pt'",
                "provoked by tests: a read-only disk",
            ),
        ),
    ),
    Rule(
        name="storage-error",
        title="The storage failed",
        texts=(
            "OSError: [Errno 5]",
            "OSError: [Errno 116]",
            "Stale file handle",
            "(Input/output error): ",
        ),
        explanation="A read or write failed in the storage itself, or the connection to it was lost.",
        remedy="Check the storage's server and the node's `dmesg`, then start the run again: it resumes.",
        samples=(
            Sample("OSError: [Errno 116] Stale file handle: '/data/train/1.jpg'", "the message of the C library"),
            Sample("OSError: [Errno 5] Input/output error", "the message of the C library"),
        ),
    ),
    Rule(
        name="credentials",
        title="The credentials are invalid or expired",
        texts=(
            "(ExpiredToken)",
            "(ExpiredTokenException)",
            "(InvalidAccessKeyId)",
            "(SignatureDoesNotMatch)",
            "(InvalidToken)",
            "rejected the credentials for ",
            "The provided token has expired",
            "Unable to locate credentials",
            "NoCredentialsError",
            "the API server rejects our credentials",
            "error: You must be logged in to the server",
            "authentication failed (401)",
        ),
        explanation="A store or server does not accept who you say you are.",
        remedy="Renew the credentials where they come from: the Secret that data.secret names, the service account's "
        "role, or your login to the cluster. `kubetrain doctor` tests them.",
        samples=(
            Sample(
                "error: S3 at http://127.0.0.1:9 rejected the credentials for s3://bucket/data (ExpiredToken): renew "
                "them",
                "provoked by tests: a sync from a server that refuses the token",
            ),
            Sample(
                "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the GetObject "
                "operation: The provided token has expired.",
                "botocore/exceptions.py",
            ),
        ),
    ),
    Rule(
        name="website-credentials",
        title="A website does not accept who you say you are",
        texts=("401 Client Error: Unauthorized for url",),
        explanation="The program downloads something that needs an account, such as a model that is gated.",
        remedy="Accept the terms of what it downloads, and give the pods a token as a variable from a Secret, such as "
        "`--set pods.secret_env.HF_TOKEN=SECRET/KEY`.",
        samples=(
            Sample(
                "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/models",
                "requests/models.py",
            ),
        ),
    ),
    Rule(
        name="access-denied",
        title="The account lacks a permission",
        texts=(
            "(AccessDenied)",
            "give it the Role in deploy/",
            ": check the permissions of the credentials",
            'is forbidden: User "',
        ),
        explanation="The credentials are valid, but not allowed to do this.",
        remedy="Add the permission that the message names: for the cluster the Role in deploy/, for S3 reading the "
        "dataset and writing below model.uri. `kubetrain doctor` lists what is missing.",
        samples=(
            Sample(
                "error: access to train/1.jpg of s3://bucket/data was denied (AccessDenied): check the permissions of "
                "the credentials",
                "provoked by tests: a sync of an object that may not be read",
            ),
            Sample(
                'pytorchjobs.kubeflow.org is forbidden: User "system:serviceaccount:kubeflow:pipeline-runner" cannot '
                "create resource",
                "the message of the API server",
            ),
        ),
    ),
    Rule(
        name="clock",
        title="The clock of a machine is wrong",
        texts=("RequestTimeTooSkewed",),
        explanation="S3 refuses requests whose time differs by more than 15 minutes.",
        remedy="Set the clock of the node, or repair its time synchronization.",
        samples=(
            Sample(
                "error: S3 at http://s3 rejected the time of a request (RequestTimeTooSkewed; here it is "
                "2026-11-26T05:00:00Z, there another time): set the clock",
                "the message of kubetrain",
            ),
        ),
    ),
    Rule(
        name="certificate",
        title="A server's certificate is not trusted",
        texts=("CERTIFICATE_VERIFY_FAILED", "x509: certificate ", "cannot verify the certificate of "),
        explanation="The certificate has expired, or this machine does not know who signed it.",
        remedy="Renew the certificate, or give the CA: AWS_CA_BUNDLE for S3, --ca-file for Kubeflow Pipelines, "
        "certificate-authority in the kubeconfig.",
        samples=(
            Sample(
                "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)",
                "the message of Python's ssl",
            ),
        ),
    ),
)
