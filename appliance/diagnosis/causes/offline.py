"""Resources outside the machine that cannot be reached: a model hub, a registry, a name server."""

from appliance.diagnosis.cause import Cause

_LOCAL = "Copy the whole model folder to this machine and use its path."
# Where there is a network: what is then to be copied.
_DOWNLOAD = "hf download {model} --local-dir {model}"
_OF_THE_HUB = r"huggingface\.co/(?:api/models/)?(?P<model>[\w.-]{1,80}/[\w.-]{0,80}\w)/(?:resolve|revision|tree)\b"

# What OpenSSL says of a certificate or key that it was given, rather than of a server's.
_NOT_OF_A_FILE = r"^(?!.{0,300}(?:values.mismatch|PEM lib|no start line|bad decrypt|no certificate or crl))"

CAUSES = (
    Cause(
        family="offline",
        name="model-path-missing",
        signs=("repo id must", "hfvalidationerror", "repo_name"),
        details=r": '(?P<path>[./~][^'\n]{1,300})'",
        summary="The model path is not a folder here, so it was taken for the name of a model on the hub: {path}.",
        fix="Correct the path. In a container, check that the folder is mounted there.",
        look="ls -ld {path}",
    ),
    Cause(
        family="offline",
        name="hub-gated",
        signs=("gated repo", "gatedrepoerror", "401 client error", "403 client error", "access to model",
               "authorized list", "invalid username or password", "repositorynotfounderror", "404 client error",
               "repository not found", "must have access to it", "must be authenticated", "invalid user token",
               "huggingface-cli login", "hf auth login"),
        details=r"(?:huggingface\.co/|access to model |repository |repo )(?:api/models/)?"
        r"(?P<model>[\w.-]{1,80}/[\w.-]{1,120}[\w-])",
        summary="The hub does not provide this model ({model}): it is gated, private, or not there under this name.",
        fix="Where there is a network, request access and set HF_TOKEN; otherwise copy the model folder to this "
        "machine and use its path.",
    ),
    Cause(
        family="offline",
        name="hub-offline",
        signs=("offline mode is enabled", "offlinemodeisenabled", "hf_hub_offline",
               "outgoing traffic has been disabled", "local_files_only", "localentrynotfounderror", "disk cache",
               "couldn't find them in the cached files", "couldn't connect to", "we couldn't connect to",
               "cached files", "transformers_offline"),
        details=_OF_THE_HUB,
        summary="The engine needs a file from the hub that is not on this machine, and the hub cannot be reached.",
        fix=_LOCAL,
        command=_DOWNLOAD,
    ),
    Cause(
        family="offline",
        name="not-a-model",
        signs=("is not a local folder and is not a valid model identifier", "make sure that",
               "is not a valid model identifier", "is the correct path to a directory", "incorrect path_or_model_id",
               "path_or_model_id", "model path does not exist", "no such model", "not found in modelscope",
               "does not exist on"),
        pattern=r"(?:valid model identifier|correct path to a directory|path_or_model_id|path does not exist"
        r"|no such model|modelscope|does not exist on)",
        summary="The model path is neither a folder on this machine nor a model on the hub.",
        fix="Correct the path. In a container, check that the folder is mounted there.",
    ),
    Cause(
        family="offline",
        name="vocabulary-download",
        line=True,
        signs=("harmonyerror", "tiktoken", "openaipublic.blob", "tiktoken_encodings_base", "vocab file", "nltk"),
        pattern=r"(?:download|http|connect|resolve|retries|loading vocab|encodings_base)",
        summary="A tokenizer library tried to download its vocabulary.",
        fix="Copy the vocabulary files to this machine and set TIKTOKEN_ENCODINGS_BASE (or TIKTOKEN_CACHE_DIR) to "
        "their folder.",
    ),
    Cause(
        family="offline",
        name="image-not-to-be-had",
        signs=("pull access denied", "manifest unknown", "errimagepull", "imagepullbackoff",
               "failed to resolve reference", "manifest for", "unable to find image", "failed to pull image",
               "toomanyrequests", "registry-1.docker.io", "error pulling image"),
        pattern=r"denied|unknown|errimagepull|backoff|resolve|not found|fail|toomany|no such host|timeout|error",
        summary="The container image is not on this machine and cannot be pulled.",
        fix="Load the image from the bundle, and check its name and tag.",
        look="docker images",
        line=True,
    ),
    Cause(
        family="offline",
        name="certificate",
        signs=("certificate_verify_failed", "certificate verify failed", "self-signed certificate",
               "self signed certificate", "certificate has expired", "certificate is not yet valid",
               "unable to get local issuer", "x509:"),
        pattern=_NOT_OF_A_FILE,
        summary="The server's certificate was not accepted: a proxy replaces it, or this machine's clock is wrong.",
        fix="Check the clock. Install the proxy's certificate (REQUESTS_CA_BUNDLE, SSL_CERT_FILE), or use a local "
        "folder.",
        look="date -u",
        line=True,
    ),
    Cause(
        family="offline",
        name="network-unreachable",
        signs=("max retries exceeded", "name resolution", "name or service not known", "network is unreachable",
               "connecttimeout", "failed to resolve", "getaddrinfo failed", "nodename nor servname",
               "temporary failure in name resolution", "connection refused", "read timed out", "proxyerror",
               "sslerror", "eof occurred in violation", "huggingface.co", "hf-mirror", "modelscope.cn",
               "no such host", "client has been closed", "connecterror", "clientconnectorerror",
               "newconnectionerror", "urlopen error", "remotedisconnected", "remote end closed",
               "chunkedencodingerror", "incompleteread"),
        pattern=_NOT_OF_A_FILE + r".{0,4000}?(?:retries|resolution|not known"
        r"|unreachable|timeout|timed out|resolve|getaddrinfo|nodename|refused"
        r"|proxy|ssl|violation|cannot reach|connect|no such host|download|closed|urlopen|disconnect|incomplete)",
        summary="The engine tried to reach something outside this machine and could not.",
        fix=_LOCAL,
        details=_OF_THE_HUB,
        command=_DOWNLOAD,
        broad=True,
    ),
    Cause(
        family="offline",
        name="hub-asked",
        signs=(),
        where=r"(?:huggingface_hub(?!/dataclasses)|modelscope/hub|transformers/utils/hub)[/.][^\n]{0,200}$",
        pattern=r"^(?!.{0,40}(?:PermissionError|No space|Errno 28|Errno 13|JSONDecode))",
        summary="A request to a model hub failed.",
        fix=_LOCAL,
        vague=True,
    ),
)  # fmt: skip
