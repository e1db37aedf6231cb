"""Signatures: keys in cosign's form made from first principles, and openssl as the judge of what is signed."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from oci.debian_registry import running

pytest.importorskip("cryptography", reason="the extra 'sign' is not installed")
pytest.importorskip("nacl", reason="the extra 'sign' is not installed")

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, utils

from graftwork.errors import ProofError, UsageError
from graftwork.images import signature
from graftwork.images.provenance import PREDICATE, STATEMENT, Attachment
from graftwork.images.signature import (
    ENVELOPE,
    SIGNATURE,
    SIMPLE_SIGNING,
    PrivateKey,
    PublicKey,
    attestation,
    key_password,
    load_private_key,
    load_public_key,
    sign_image,
    sign_statement,
    verify_image,
    verify_statement,
)
from graftwork.oci.canonical import canonical_json
from graftwork.oci.model import CONFIG, MANIFEST, sha256_digest

IMAGE = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
REPO = "registry.example/team/engine"
SUBJECT = [{"name": "x", "digest": {"sha256": "a" * 64}}]
STATED = canonical_json({"_type": STATEMENT, "predicateType": PREDICATE, "subject": SUBJECT, "predicate": {}})
PASSWORD = b"correct horse"


# Salsa20, XSalsa20 and Poly1305 from their specifications: the judge of what PyNaCl opens for us.


def _core(key: bytes, middle: bytes, *, last: bool) -> bytes:
    """The Salsa20 hash with *last*, HSalsa20 without."""
    sigma, half = b"expand 32-byte k", len(key) // 2
    block = sigma[:4] + key[:half] + sigma[4:8] + middle + sigma[8:12] + key[half:] + sigma[12:]
    start = list(struct.unpack("<16I", block))
    x = list(start)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for to, first, second, by in ((b, a, d, 7), (c, b, a, 9), (d, c, b, 13), (a, d, c, 18)):
            total = (x[first] + x[second]) & 0xFFFFFFFF
            x[to] ^= ((total << by) | (total >> (32 - by))) & 0xFFFFFFFF

    for _ in range(10):
        for column in ((0, 4, 8, 12), (5, 9, 13, 1), (10, 14, 2, 6), (15, 3, 7, 11)):
            quarter(*column)
        for row in ((0, 1, 2, 3), (5, 6, 7, 4), (10, 11, 8, 9), (15, 12, 13, 14)):
            quarter(*row)
    if last:
        return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(x, start, strict=True)))
    return struct.pack("<8I", *(x[i] for i in (0, 5, 10, 15, 6, 7, 8, 9)))


def secretbox(key: bytes, nonce: bytes, message: bytes) -> bytes:
    """NaCl's crypto_secretbox_xsalsa20poly1305: the tag, then the ciphertext."""
    inner = _core(key, nonce[:16], last=False)
    count = (32 + len(message)) // 64 + 1
    stream = b"".join(_core(inner, nonce[16:] + struct.pack("<Q", i), last=True) for i in range(count))
    sealed = bytes(a ^ b for a, b in zip(message, stream[32:], strict=False))
    r = int.from_bytes(stream[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for at in range(0, len(sealed), 16):
        total = (total + int.from_bytes(sealed[at : at + 16] + b"\1", "little")) * r % (2**130 - 5)
    tag = (total + int.from_bytes(stream[16:32], "little")) % 2**128
    return tag.to_bytes(16, "little") + sealed


def test_the_judge_itself() -> None:
    """The first bytes of NaCl's own test vector (tests/secretbox.c)."""
    key = bytes.fromhex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389")
    nonce = bytes.fromhex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37")
    message = bytes.fromhex(
        "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a1ac728d45e6c61296cdc3c01"
        "233561f41db66cce314adb310e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde048977eb48f59ffd"
        "4924ca1c60902e52f0a089bc76897040e082f937763848645e0705"
    )
    sealed = secretbox(key, nonce, message)
    assert sealed[:32].hex() == "f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce"
    assert len(sealed) == len(message) + 16


def cosign_pem(
    key: ec.EllipticCurvePrivateKey,
    password: bytes = PASSWORD,
    label: str = "ENCRYPTED SIGSTORE PRIVATE KEY",
    n: int = 1 << 10,
    change: Callable[[dict[str, Any]], object] = lambda document: None,
) -> bytes:
    """A key as ``cosign generate-key-pair`` writes it; only scrypt's N is small, to be quick."""
    der = key.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    salt, nonce = bytes(range(32)), bytes(range(24))
    secret = hashlib.scrypt(password, salt=salt, n=n, r=8, p=1, maxmem=1 << 28, dklen=32)
    document: dict[str, Any] = {
        "kdf": {"name": "scrypt", "params": {"N": n, "r": 8, "p": 1}, "salt": base64.b64encode(salt).decode()},
        "cipher": {"name": "nacl/secretbox", "nonce": base64.b64encode(nonce).decode()},
        "ciphertext": base64.b64encode(secretbox(secret, nonce, der)).decode(),
    }
    change(document)
    body = base64.encodebytes(json.dumps(document).encode()).decode()
    return f"-----BEGIN {label}-----\n{body}-----END {label}-----\n".encode()


def public_pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture(scope="module")
def raw() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="module")
def key(raw: ec.EllipticCurvePrivateKey) -> PrivateKey:
    return load_private_key(cosign_pem(raw), "cosign.key", lambda: PASSWORD)


@pytest.fixture(scope="module")
def public(raw: ec.EllipticCurvePrivateKey) -> PublicKey:
    return load_public_key(public_pem(raw), "cosign.pub")


@pytest.fixture(scope="module")
def stranger() -> PrivateKey:
    return PrivateKey(ec.generate_private_key(ec.SECP256R1()))


def by_digest(attachment: Attachment) -> dict[str, bytes]:
    return {sha256_digest(blob): blob for blob in attachment.blobs}


@pytest.mark.parametrize("label", ["ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY"])
@pytest.mark.parametrize("n", [1 << 10, 1 << 16])
def test_cosigns_keys_are_read(raw: ec.EllipticCurvePrivateKey, label: str, n: int) -> None:
    found = load_private_key(cosign_pem(raw, label=label, n=n), "cosign.key", lambda: PASSWORD)
    assert found.key.private_numbers() == raw.private_numbers()


def test_plain_keys_are_read_without_a_password(raw: ec.EllipticCurvePrivateKey) -> None:
    def never() -> bytes:
        raise AssertionError("asked for a password")

    for form in (serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL):
        pem = raw.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        assert load_private_key(pem, "key.pem", never).key.private_numbers() == raw.private_numbers()


def test_an_encrypted_pkcs8_key(raw: ec.EllipticCurvePrivateKey) -> None:
    hidden = serialization.BestAvailableEncryption(PASSWORD)
    pem = raw.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
    assert load_private_key(pem, "key.pem", lambda: PASSWORD).key.private_numbers() == raw.private_numbers()
    for wrong in (b"wrong", b""):
        with pytest.raises(UsageError, match=r"key\.pem is no private key that can be read, or the password is wrong"):
            load_private_key(pem, "key.pem", lambda password=wrong: password)


def test_the_password(monkeypatch: pytest.MonkeyPatch, raw: ec.EllipticCurvePrivateKey) -> None:
    monkeypatch.delenv("COSIGN_PASSWORD", raising=False)
    assert key_password(lambda: "typed") == b"typed"
    with pytest.raises(UsageError, match="encrypted and there is no password") as caught:
        load_private_key(cosign_pem(raw), "cosign.key")
    assert "COSIGN_PASSWORD" in caught.value.hint
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    assert key_password(lambda: "typed") == b""
    assert load_private_key(cosign_pem(raw, password=b""), "cosign.key").public.id
    monkeypatch.setenv("COSIGN_PASSWORD", "wrong")
    with pytest.raises(UsageError, match=r"the password does not open cosign\.key"):
        load_private_key(cosign_pem(raw), "cosign.key")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["kdf"].update(name="argon2"), "uses argon2 and nacl/secretbox, expected scrypt"),
        (lambda d: d["cipher"].update(name="aes"), "uses scrypt and aes"),
        (lambda d: d["kdf"]["params"].update(N=1 << 40), "N=1099511627776, r=8, p=1, which no key of cosign has"),
        (lambda d: d["kdf"]["params"].update(N=1000), "N=1000, r=8"),
        (lambda d: d["kdf"]["params"].update(N=1), "N=1, r=8"),
        (lambda d: d["kdf"]["params"].update(r=0), "r=0"),
        (lambda d: d["kdf"]["params"].update(p=1 << 30), "p=1073741824"),
        (lambda d: d["kdf"].update(params={}), "N=0, r=0, p=0"),
        (lambda d: d["cipher"].update(nonce="AAAA"), "a nonce of 3 bytes, expected 24"),
        (lambda d: d.update(ciphertext=d["ciphertext"][:40] + "AAAA" + d["ciphertext"][44:]), "does not open"),
        (lambda d: d.update(ciphertext=""), "does not open"),
        (lambda d: d.pop("kdf"), "is not a key in cosign's form"),
        (lambda d: d.update(ciphertext="*"), "is not a key in cosign's form"),
    ],
)
def test_a_spoiled_cosign_key(
    raw: ec.EllipticCurvePrivateKey, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    with pytest.raises(UsageError, match=r"cosign\.key") as caught:
        load_private_key(cosign_pem(raw, change=change), "cosign.key", lambda: PASSWORD)
    assert says in str(caught.value)


def test_other_kinds_of_key_are_refused(raw: ec.EllipticCurvePrivateKey) -> None:
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    for other in (ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()):
        pem = other.private_bytes(serialization.Encoding.PEM, pkcs8, plain)
        with pytest.raises(UsageError, match="not an ECDSA key on P-256"):
            load_private_key(pem, "key.pem")
        with pytest.raises(UsageError, match="not an ECDSA key on P-256"):
            load_public_key(public_pem(other), "key.pub")
    with pytest.raises(UsageError, match="is a PRIVATE KEY, not a PUBLIC KEY"):
        load_public_key(raw.private_bytes(serialization.Encoding.PEM, pkcs8, plain), "key.pem")
    with pytest.raises(UsageError, match=r"no private key that can be read$"):
        load_private_key(public_pem(raw), "key.pub")


@given(st.binary(max_size=80), st.sampled_from(["PUBLIC KEY", "PRIVATE KEY", "ENCRYPTED SIGSTORE PRIVATE KEY"]))
def test_nonsense_is_no_key(data: bytes, label: str) -> None:
    inner = base64.b64encode(data).decode()
    for pem in (data, f"-----BEGIN {label}-----\n{inner}\n-----END {label}-----\n".encode()):
        for load in (load_public_key, lambda pem, where: load_private_key(pem, where, lambda: b"")):
            with pytest.raises(UsageError):
                load(pem, "x")
    broken = f"-----BEGIN {label}-----\n{inner}A\n-----END {label}-----\n".encode()
    with pytest.raises(UsageError):
        load_public_key(broken, "x")


def test_signing_is_deterministic_as_rfc_6979_says() -> None:
    """RFC 6979, A.2.5: P-256, SHA-256, message "sample"."""
    try:
        ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    except UnsupportedAlgorithm:
        pytest.skip("this OpenSSL is older than 3.2")
    secret = int("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721", 16)
    found = utils.decode_dss_signature(PrivateKey(ec.derive_private_key(secret, ec.SECP256R1())).sign(b"sample"))
    assert f"{found[0]:064X}" == "EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716"
    assert f"{found[1]:064X}" == "F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8"


def test_an_openssl_without_rfc_6979_signs_too(
    monkeypatch: pytest.MonkeyPatch, key: PrivateKey, public: PublicKey
) -> None:
    real = ec.ECDSA
    key.sign(b"the library looks its own types up at the first signature, and keeps them")

    def older(algorithm: hashes.HashAlgorithm, deterministic_signing: bool = False) -> ec.ECDSA:
        if deterministic_signing:
            raise UnsupportedAlgorithm("too old")
        return real(algorithm)

    monkeypatch.setattr(ec, "ECDSA", older)
    assert public.signed(b"x", key.sign(b"x"))


def test_what_cosign_finds(key: PrivateKey) -> None:
    made = sign_image(key, IMAGE, REPO)
    assert made.tag == "sha256-" + "a" * 64 + ".sig"
    payload, config = made.blobs
    assert json.loads(payload) == {
        "critical": {
            "identity": {"docker-reference": REPO},
            "image": {"docker-manifest-digest": IMAGE},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    manifest = json.loads(made.manifest)
    assert manifest["mediaType"] == MANIFEST
    assert manifest["config"] == {"mediaType": CONFIG, "digest": sha256_digest(config), "size": len(config)}
    assert json.loads(config)["rootfs"]["diff_ids"] == [sha256_digest(payload)]
    (layer,) = manifest["layers"]
    assert (layer["mediaType"], layer["digest"]) == (SIMPLE_SIGNING, sha256_digest(payload))
    assert list(layer["annotations"]) == [SIGNATURE]


def openssl(*arguments: str | Path, data: bytes = b"") -> bytes:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    done = subprocess.run([program, *map(str, arguments)], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
    return done.stdout


def test_openssl_verifies_what_we_sign(key: PrivateKey, raw: ec.EllipticCurvePrivateKey, tmp_path: Path) -> None:
    (tmp_path / "pub").write_bytes(public_pem(raw))
    made = sign_image(key, IMAGE, REPO)
    envelope = json.loads(sign_statement(key, STATED))
    stated = base64.b64decode(envelope["payload"])
    # DSSE protocol: "DSSEv1" SP LEN(type) SP type SP LEN(body) SP body
    signed = f"DSSEv1 28 application/vnd.in-toto+json {len(stated)} ".encode() + stated
    texts = (json.loads(made.manifest)["layers"][0]["annotations"][SIGNATURE], envelope["signatures"][0]["sig"])
    for text, data in zip(texts, (made.blobs[0], signed), strict=True):
        (tmp_path / "sig").write_bytes(base64.b64decode(text))
        (tmp_path / "data").write_bytes(data)
        said = openssl(
            "dgst", "-sha256", "-verify", tmp_path / "pub", "-signature", tmp_path / "sig", tmp_path / "data"
        )
        assert said == b"Verified OK\n"


def test_we_verify_what_openssl_signs(tmp_path: Path) -> None:
    """With a key as openssl writes it: a block of parameters first."""
    pem = openssl("ecparam", "-name", "prime256v1", "-genkey")
    assert pem.startswith(b"-----BEGIN EC PARAMETERS")
    (tmp_path / "key").write_bytes(pem)
    public = load_public_key(openssl("ec", "-in", tmp_path / "key", "-pubout"), "key.pub")
    ours = load_private_key(pem, "key.pem")
    assert ours.public.id == public.id
    made = sign_image(ours, IMAGE, REPO)
    manifest = json.loads(made.manifest)
    signed = openssl("dgst", "-sha256", "-sign", tmp_path / "key", data=made.blobs[0])
    manifest["layers"][0]["annotations"][SIGNATURE] = base64.b64encode(signed).decode()
    assert verify_image(public, IMAGE, json.dumps(manifest).encode(), by_digest(made))["optional"] is None


def test_a_signature_is_verified(key: PrivateKey, public: PublicKey, stranger: PrivateKey) -> None:
    made = sign_image(key, IMAGE, REPO)
    blobs = by_digest(made)
    assert verify_image(public, IMAGE, made.manifest, blobs, REPO)["critical"]["identity"] == {"docker-reference": REPO}
    for arguments, says in (
        ((stranger.public, IMAGE, made.manifest, blobs), "signature 1: it is another key's, or it or its payload was"),
        ((public, OTHER, made.manifest, blobs), f"it is for the image '{IMAGE}', not for '{OTHER}'"),
        (
            (public, IMAGE, made.manifest, blobs, "other/repo"),
            f"it is for the repository '{REPO}', not for 'other/repo'",
        ),
        ((public, IMAGE, made.manifest, {}), f"its payload {sha256_digest(made.blobs[0])} is not there"),
        (
            (public, IMAGE, made.manifest, dict.fromkeys(blobs, b"x")),
            f"its payload is {sha256_digest(b'x')}, the manifest",
        ),
        ((public, IMAGE, b'{"layers": []}', blobs), "holds no signature"),
        ((public, IMAGE, b'{"layers": 3}', blobs), "has no list of layers"),
        ((public, IMAGE, b"{", blobs), "is not JSON"),
    ):
        with pytest.raises(ProofError) as caught:
            verify_image(*arguments)
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (
            {"critical": {"type": "other", "image": {"docker-manifest-digest": IMAGE}, "identity": {}}},
            "for the type 'other'",
        ),
        ({"critical": {"type": "cosign container image signature", "image": {}, "identity": {}}}, "for the image None"),
        ({"critical": []}, "not that of an image's signature"),
        ([], "not that of an image's signature"),
    ],
)
def test_a_good_signature_of_something_else(key: PrivateKey, public: PublicKey, payload: object, says: str) -> None:
    data = canonical_json(payload)
    text = base64.b64encode(key.sign(data)).decode()
    layer = {"mediaType": SIMPLE_SIGNING, "digest": sha256_digest(data), "annotations": {SIGNATURE: text}}
    with pytest.raises(ProofError) as caught:
        verify_image(public, IMAGE, canonical_json({"layers": [layer]}), {sha256_digest(data): data})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "annotations", [None, 3, {}, {SIGNATURE: 3}, {SIGNATURE: "*"}, {SIGNATURE: "ä"}, {SIGNATURE: "AA=="}]
)
def test_a_signature_that_is_none(key: PrivateKey, public: PublicKey, annotations: object) -> None:
    made = sign_image(key, IMAGE, REPO)
    manifest = json.loads(made.manifest)
    manifest["layers"][0]["annotations"] = annotations
    with pytest.raises(ProofError, match="signature 1: it is another key's"):
        verify_image(public, IMAGE, json.dumps(manifest).encode(), by_digest(made))


def test_signatures_of_others_are_kept(key: PrivateKey, public: PublicKey, stranger: PrivateKey) -> None:
    theirs = sign_image(stranger, IMAGE, REPO)
    both = sign_image(key, IMAGE, REPO, theirs.manifest)
    layers = json.loads(both.manifest)["layers"]
    assert layers[:1] == json.loads(theirs.manifest)["layers"] and len(layers) == 2
    assert json.loads(both.blobs[1])["rootfs"]["diff_ids"] == [layer["digest"] for layer in layers]
    for one in (public, stranger.public):
        assert verify_image(one, IMAGE, both.manifest, by_digest(both))
    with pytest.raises(ProofError, match=r"(?s)signature 1: .*signature 2: "):
        verify_image(PrivateKey(ec.generate_private_key(ec.SECP256R1())).public, IMAGE, both.manifest, by_digest(both))
    if key.sign(b"") == key.sign(b""):
        assert sign_image(key, IMAGE, REPO, both.manifest).manifest == both.manifest


def test_an_envelope_is_verified(key: PrivateKey, public: PublicKey, stranger: PrivateKey) -> None:
    envelope = sign_statement(key, STATED)
    assert verify_statement(public, envelope, IMAGE)["predicateType"] == PREDICATE
    found = json.loads(envelope)
    assert found["payloadType"] == "application/vnd.in-toto+json"
    assert found["signatures"][0]["keyid"] == public.id

    def with_(**changes: object) -> bytes:
        return json.dumps({**found, **changes}).encode()

    changed = base64.b64encode(STATED.replace(b'"x"', b'"y"')).decode()
    for one, data, image, says in (
        (
            stranger.public,
            envelope,
            IMAGE,
            f"not signed by the key {stranger.public.id[:16]}, or was changed; its signatures",
        ),
        (public, with_(payload=changed), IMAGE, f"its signatures are of: {public.id[:16]}"),
        (public, with_(payload="*"), IMAGE, "the envelope's payload is not base64"),
        (public, with_(payload=3), IMAGE, "the envelope's payload is not base64"),
        (public, with_(payloadType="text/plain"), IMAGE, "holds 'text/plain', expected"),
        (public, with_(signatures=[]), IMAGE, "its signatures are of: none"),
        (public, with_(signatures={}), IMAGE, "its signatures are of: none"),
        (public, with_(signatures=[{"sig": 3}, {}, 1]), IMAGE, "its signatures are of: unnamed, unnamed"),
        (public, envelope, OTHER, f"not about the image {OTHER}"),
        (public, b"[]", IMAGE, "the envelope is not a JSON object"),
    ):
        with pytest.raises(ProofError) as caught:
            verify_statement(one, data, image)
        assert says in str(caught.value)


def test_the_key_id_decides_nothing_and_base64_may_be_url_safe(key: PrivateKey, public: PublicKey) -> None:
    found = json.loads(sign_statement(key, STATED.replace(b'"x"', b'"?>~"')))
    broken = {"keyid": public.id, "sig": "*"}
    found["signatures"] = [broken, {"sig": found["signatures"][0]["sig"]}]
    urlsafe = json.dumps(found).replace("+", "-")
    urlsafe = urlsafe.replace("in-toto-json", "in-toto+json")
    assert verify_statement(public, urlsafe.encode(), IMAGE)


def test_securesystemslib_verifies_our_envelope(key: PrivateKey, raw: ec.EllipticCurvePrivateKey) -> None:
    dsse = pytest.importorskip("securesystemslib.dsse", reason="securesystemslib, a second judge, is not installed")
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    found = dsse.Envelope.from_dict(json.loads(sign_statement(key, STATED)))
    ours = SSlibKey.from_crypto(raw.public_key(), key.public.id)
    assert found.verify([ours], 1) and found.payload == STATED
    found.payload += b" "
    with pytest.raises(VerificationError):
        found.verify([ours], 1)


def test_an_envelope_is_stored_as_cosign_does(key: PrivateKey) -> None:
    envelope = sign_statement(key, STATED)
    made = attestation(envelope, IMAGE)
    assert made.tag == "sha256-" + "a" * 64 + ".att" and made.blobs[0] == envelope
    (layer,) = json.loads(made.manifest)["layers"]
    assert layer["mediaType"] == ENVELOPE
    assert layer["annotations"] == {SIGNATURE: "", "predicateType": PREDICATE}
    again = attestation(envelope, IMAGE, made.manifest)
    assert again.manifest == made.manifest


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nacl.secret", None)
    with pytest.raises(UsageError, match=r"the extra 'sign' \(nacl\.secret is missing\)") as caught:
        load_private_key(b"", "x")
    assert "graftwork[sign]" in caught.value.hint


def test_nothing_heavy_is_imported_at_the_start() -> None:
    code = "import sys, graftwork.images.signature; print([m for m in sys.modules if m in ('cryptography', 'nacl')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n" and signature.PASSWORD == "COSIGN_PASSWORD"


@pytest.mark.oci
@pytest.mark.registry
def test_a_registry_and_skopeo_take_what_we_store(key: PrivateKey, public: PublicKey, tmp_path: Path) -> None:
    """As images, which is what cosign's tags are. (Debian's skopeo is built without the check of signatures.)"""
    program = shutil.which("skopeo")
    if program is None:
        pytest.skip("skopeo is not installed: scripts/install-services")
    with running(tmp_path / "registry") as host:
        url = f"http://{host}/v2/engine"
        for made in (sign_image(key, IMAGE, f"{host}/engine"), attestation(sign_statement(key, STATED), IMAGE)):
            for blob in made.blobs:
                place = requests.post(f"{url}/blobs/uploads/", timeout=30).headers["Location"]
                at = f"{place}{'&' if '?' in place else '?'}digest={sha256_digest(blob)}"
                assert requests.put(at, data=blob, timeout=30).status_code == 201
            kind = {"Content-Type": MANIFEST}
            put = requests.put(f"{url}/manifests/{made.tag}", data=made.manifest, headers=kind, timeout=30)
            assert put.status_code == 201, put.text
            folder = tmp_path / made.tag
            source = f"docker://{host}/engine:{made.tag}"
            subprocess.run([program, "copy", "-q", "--src-tls-verify=false", source, f"dir:{folder}"], check=True)
            assert (folder / "manifest.json").read_bytes() == made.manifest
            stored = {sha256_digest(file.read_bytes()): file.read_bytes() for file in folder.iterdir()}
            assert set(by_digest(made)) <= set(stored)
            if made.tag.endswith(".sig"):
                assert verify_image(public, IMAGE, made.manifest, stored, f"{host}/engine")
            else:
                assert verify_statement(public, stored[sha256_digest(made.blobs[0])], IMAGE)
