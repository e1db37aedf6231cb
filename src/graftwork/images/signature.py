"""Signatures with an ECDSA P-256 key in cosign's format: of an image, and of a statement about it.

Sources: cosign SIGNATURE_SPEC and the encrypted key format of go-securesystemslib; DSSE v1 (protocol, envelope).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from graftwork.errors import ProofError, UsageError
from graftwork.images.provenance import (
    IN_TOTO,
    PREDICATE,
    Attachment,
    check_statement,
    cosign_manifest,
    manifest_layers,
    parse_object,
)
from graftwork.names import digest
from graftwork.oci.canonical import canonical_json
from graftwork.oci.model import describe, sha256_digest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
SIG, ATT = "sig", "att"  # the ends of cosign's tags for signatures and attestations
PASSWORD = "COSIGN_PASSWORD"

_REFERENCE, _DIGEST = "docker-reference", "docker-manifest-digest"
_TYPE = "cosign container image signature"
_SEALED = ("ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY")
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----\s*([A-Za-z0-9+/=\s]+?)\s*-----END \1-----")
_SCRYPT_MEMORY = 256 << 20  # bytes; cosign's own keys need 64 MiB
_HINT = "Make a key pair with 'cosign generate-key-pair', or a P-256 key with openssl."


class _Kdf(msgspec.Struct):
    name: str
    params: dict[str, int]
    salt: bytes


class _Cipher(msgspec.Struct):
    name: str
    nonce: bytes


class _Sealed(msgspec.Struct):
    """The JSON in an encrypted key's PEM block."""

    kdf: _Kdf
    cipher: _Cipher
    ciphertext: bytes


class _Critical(msgspec.Struct):
    identity: dict[str, str]
    image: dict[str, str]
    type: str


class _Payload(msgspec.Struct):
    """What cosign signs: a "simple signing" document."""

    critical: _Critical


@dataclass(frozen=True)
class PublicKey:
    """A key to verify with. *id* is the sha256 (hex) of its DER form (SubjectPublicKeyInfo)."""

    key: EllipticCurvePublicKey
    id: str

    def signed(self, data: bytes, signature: bytes) -> bool:
        """Whether *signature* (ECDSA, SHA-256, DER) is this key's of *data*."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            self.key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class PrivateKey:
    """A key to sign with."""

    key: EllipticCurvePrivateKey

    @property
    def public(self) -> PublicKey:
        return _public(self.key.public_key())

    def sign(self, data: bytes) -> bytes:
        """ECDSA with SHA-256, DER. The same bytes each time (RFC 6979) where OpenSSL can (3.2 and later)."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
        except UnsupportedAlgorithm:
            algorithm = ec.ECDSA(hashes.SHA256())
        return self.key.sign(data, algorithm)


def key_password(prompt: Callable[[], str] | None = None) -> bytes:
    """The password of a private key: COSIGN_PASSWORD (which may be empty), else what *prompt* returns."""
    text = os.environ.get(PASSWORD)
    if text is None and prompt is not None:
        text = prompt()
    if text is None:
        raise UsageError("the private key is encrypted and there is no password", hint=f"Set {PASSWORD}.")
    return text.encode()


def load_private_key(pem: bytes, where: str, password: Callable[[], bytes] = key_password) -> PrivateKey:
    """A private key: cosign's encrypted form, or PKCS #8 or SEC 1 PEM. *password* is called only if it is encrypted.

    UsageError naming *where* if it is no P-256 key, is spoiled, or the password does not open it.
    """
    with_extra()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    label, body = _pem(pem, where)
    secret = None
    if label in _SEALED:
        body = _opened(body, where, password)
    elif label.startswith("ENCRYPTED"):
        secret = password()
    try:
        key = load_der_private_key(body, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        doubt = ", or the password is wrong" if secret is not None else ""
        raise UsageError(f"{where} is no private key that can be read{doubt}", hint=_HINT) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise UsageError(f"{where} is not an ECDSA key on P-256", hint=_HINT)
    return PrivateKey(key)


def load_public_key(pem: bytes, where: str) -> PublicKey:
    """A public key from PEM ("PUBLIC KEY"). UsageError naming *where* if it is no P-256 key."""
    with_extra()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    label, body = _pem(pem, where)
    if label != "PUBLIC KEY":
        raise UsageError(f"{where} is a {label}, not a PUBLIC KEY", hint="Verify with the public half of the pair.")
    try:
        key = load_der_public_key(body)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{where} is no public key that can be read: {error}", hint=_HINT) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise UsageError(f"{where} is not an ECDSA key on P-256", hint=_HINT)
    return _public(key)


def sign_image(key: PrivateKey, image: str, repository: str, existing: bytes | None = None) -> Attachment:
    """cosign's signature of the manifest digest *image*, which lies in *repository* (``registry/name``, no tag).

    *existing*: the manifest that the tag has now; the signatures in it are kept.
    """
    critical = {"identity": {_REFERENCE: repository}, "image": {_DIGEST: digest(image)}, "type": _TYPE}
    payload = canonical_json({"critical": critical, "optional": None})
    annotations = {SIGNATURE: base64.b64encode(key.sign(payload)).decode()}
    layer = describe(payload, SIMPLE_SIGNING, annotations=annotations)
    return cosign_manifest(layer, payload, tag_of(image, SIG), existing)


def sign_statement(key: PrivateKey, statement: bytes) -> bytes:
    """A DSSE envelope of *statement*, an in-toto statement. Its key id is the public key's ``id``."""
    row = {"keyid": key.public.id, "sig": base64.b64encode(key.sign(_pae(IN_TOTO, statement))).decode()}
    return canonical_json(
        {"payload": base64.b64encode(statement).decode(), "payloadType": IN_TOTO, "signatures": [row]}
    )


def attestation(envelope: bytes, image: str, existing: bytes | None = None) -> Attachment:
    """The envelope as cosign stores an attestation. For a referrer, give the envelope to ``provenance.artifact``."""
    annotations = {SIGNATURE: "", "predicateType": PREDICATE}
    layer = describe(envelope, ENVELOPE, annotations=annotations)
    return cosign_manifest(layer, envelope, tag_of(image, ATT), existing)


def verify_image(
    key: PublicKey, image: str, manifest: bytes, blobs: Mapping[str, bytes], repository: str = ""
) -> dict[str, Any]:
    """The signed payload of *image*, from the manifest under the ``.sig`` tag and its *blobs* by digest.

    One signature by *key* is enough. ProofError, with what is wrong with each, if there is none. *repository*: where
    the payload must say that the image lies; '' for anywhere, since a mirrored image keeps its signature.
    """
    wrong = []
    signatures = [layer for layer in manifest_layers(manifest) if layer.get("mediaType") == SIMPLE_SIGNING]
    for place, layer in enumerate(signatures):
        problem, found = _judge(key, layer, blobs, image, repository)
        if found is not None:
            return found
        wrong.append(f"signature {place + 1}: {problem}")
    if not wrong:
        raise ProofError(f"{image}: its signature manifest holds no signature", hint="Sign the image again.")
    raise ProofError(
        "\n  ".join([f"{image} is not signed by the key {key.id[:16]}:", *wrong]),
        hint="Check that it is the right image and the right public key.",
    )


def verify_statement(key: PublicKey, envelope: bytes, image: str) -> dict[str, Any]:
    """The in-toto statement in a DSSE envelope, if *key* signed it and it is provenance of *image*; else ProofError."""
    found = parse_object(envelope, "the envelope")
    if found.get("payloadType") != IN_TOTO:
        raise ProofError(f"the envelope holds {found.get('payloadType')!r}, expected {IN_TOTO!r}")
    payload = _base64(found.get("payload"), "the envelope's payload")
    rows = found.get("signatures")
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    signed = _pae(IN_TOTO, payload)
    # The key id is a hint that nobody has signed (DSSE): any signature may be this key's.
    if not any(_good(key, signed, row.get("sig")) for row in rows):
        others = ", ".join(str(row.get("keyid") or "unnamed")[:16] for row in rows) or "none"
        raise ProofError(
            f"the envelope is not signed by the key {key.id[:16]}, or was changed; its signatures are of: {others}",
            hint="Check that it is the right public key.",
        )
    return check_statement(payload, image)


def verify_provenance(key: PublicKey, image: str, manifest: bytes, blobs: Mapping[str, bytes]) -> dict[str, Any]:
    """The provenance of *image* that *key* signed, from the manifest under the ``.att`` tag and its *blobs* by digest.

    One by *key* is enough. ProofError, with what is wrong with each, if there is none.
    """
    wrong = []
    for layer in manifest_layers(manifest):
        if (layer.get("annotations") or {}).get("predicateType") == PREDICATE:
            try:
                return verify_statement(key, blobs[str(layer.get("digest"))], image)
            except ProofError as error:
                wrong.append(str(error))
    raise ProofError("\n  ".join([f"{image} has no provenance that the key {key.id[:16]} signed:", *wrong]))


def tag_of(image: str, end: str) -> str:
    """The tag under which cosign keeps what is about the manifest digest *image*: SIG or ATT."""
    return f"{digest(image).replace(':', '-')}.{end}"


def with_extra() -> None:
    """UsageError that names the extra if what signs is not installed."""
    try:
        import cryptography  # noqa: F401
        import nacl.secret  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"signatures need the extra 'sign' ({error.name} is missing)", hint="pip install 'graftwork[sign]'"
        ) from error


def _public(key: EllipticCurvePublicKey) -> PublicKey:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(key, hashlib.sha256(der).hexdigest())


def _pem(data: bytes, where: str) -> tuple[str, bytes]:
    """(label, decoded body) of the first PEM block with a key; other blocks, such as EC PARAMETERS, are passed over."""
    for label, body in _PEM.findall(data):
        if label.endswith(b"KEY"):
            try:
                return label.decode(), base64.b64decode(body)
            except binascii.Error as error:
                raise UsageError(f"{where} is spoiled: {error}", hint=_HINT) from error
    raise UsageError(f"{where} is not a key in PEM form", hint=_HINT)


def _opened(body: bytes, where: str, password: Callable[[], bytes]) -> bytes:
    """The DER in cosign's encrypted form: scrypt, then NaCl's secretbox."""
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    try:
        sealed = msgspec.json.decode(body, type=_Sealed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where} is not a key in cosign's form: {error}", hint=_HINT) from error
    if (sealed.kdf.name, sealed.cipher.name) != ("scrypt", "nacl/secretbox"):
        raise UsageError(f"{where} uses {sealed.kdf.name} and {sealed.cipher.name}, expected scrypt and nacl/secretbox")
    n, r, p = (sealed.kdf.params.get(name, 0) for name in ("N", "r", "p"))
    if min(n - 1, r, p) < 1 or p > 16 or n & (n - 1) or 128 * n * r > _SCRYPT_MEMORY:
        raise UsageError(f"{where} has scrypt parameters N={n}, r={r}, p={p}, which no key of cosign has", hint=_HINT)
    if len(sealed.cipher.nonce) != SecretBox.NONCE_SIZE:
        raise UsageError(f"{where} has a nonce of {len(sealed.cipher.nonce)} bytes, expected {SecretBox.NONCE_SIZE}")
    secret = Scrypt(salt=sealed.kdf.salt, length=SecretBox.KEY_SIZE, n=n, r=r, p=p).derive(password())
    try:
        return SecretBox(secret).decrypt(sealed.ciphertext, sealed.cipher.nonce)
    except CryptoError as error:
        raise UsageError(f"the password does not open {where}", hint=f"Check {PASSWORD}.") from error


def _judge(
    key: PublicKey, layer: dict[str, Any], blobs: Mapping[str, bytes], image: str, repository: str
) -> tuple[str, dict[str, Any] | None]:
    """(what is wrong with one signature, None), or ('', its payload)."""
    name = str(layer.get("digest"))
    payload = blobs.get(name)
    if payload is None:
        return f"its payload {name} is not there", None
    if sha256_digest(payload) != name:
        return f"its payload is {sha256_digest(payload)}, the manifest says {name}", None
    annotations = layer.get("annotations")
    if not _good(key, payload, annotations.get(SIGNATURE) if isinstance(annotations, dict) else None):
        return "it is another key's, or it or its payload was changed", None
    try:
        critical = msgspec.json.decode(payload, type=_Payload).critical
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"its payload is not that of an image's signature: {error}", None
    said = (critical.type, critical.image.get(_DIGEST), critical.identity.get(_REFERENCE))
    for what, have, want in zip(("type", "image", "repository"), said, (_TYPE, image, repository), strict=True):
        if have != want and (what, want) != ("repository", ""):
            return f"it is for the {what} {have!r}, not for {want!r}", None
    return "", parse_object(payload, "the payload")


def _good(key: PublicKey, data: bytes, text: object) -> bool:
    """Whether *text* is *key*'s signature of *data*; one that cannot be read is nobody's."""
    try:
        return key.signed(data, _base64(text, "the signature"))
    except ProofError:
        return False


def _pae(kind: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: what is really signed."""
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)


def _base64(value: object, what: str) -> bytes:
    """Standard or URL-safe base64, as DSSE allows."""
    try:
        return base64.b64decode(str(value or "").translate(str.maketrans("-_", "+/")), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProofError(f"{what} is not base64") from error
