"""What the gate does with the tar on its input: check SHA256SUMS.minisig, and exit with 1 if it is not right."""

import io
import sys
import tarfile

from appliance.bundle.errors import BundleError
from appliance.bundle.signature import PublicKey, verify

with tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read())) as given:
    files = {member.name: given.extractfile(member).read() for member in given}
try:
    verify(files["SHA256SUMS"], files["SHA256SUMS.minisig"], PublicKey.parse(files["key"]))
except BundleError as error:
    sys.exit(str(error))
