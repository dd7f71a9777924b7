"""Makes the secrets and certificates of an installation: `python k8s/make_secrets.py`.

It writes manifests to stdout; a second run makes others. It needs nothing but Python and the
package cryptography, and shows what a secret manager has to provide if you have one
(docs/kubernetes.md). --only NAME --suffix 2 makes one anew under another name, for a rotation: pods
that run keep what they started with, and those of the next cluster take the new one.
"""

import argparse
import base64
import datetime
import hashlib
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PEER_NAME = "peer.pagoda.internal"
VALKEYS = ("valkey-blocks", "valkey-gcs")
YEAR = datetime.timedelta(days=365)

Data = dict[str, str]


def makers(
    namespace: str, *, now: datetime.datetime, api_keys: Sequence[str] = ()
) -> dict[str, Callable[[], Data]]:
    """What makes the data of each Secret, by its name."""
    return {
        "pagoda-ray-token": lambda: {"auth_token": secrets.token_hex(32)},
        "pagoda-api-keys": lambda: _api_keys(api_keys),
        "pagoda-peer-tls": lambda: _certificate([PEER_NAME], now=now),
        "pagoda-valkey-tls": lambda: _certificate(_names(namespace), now=now),
        "pagoda-valkey-blocks": _blocks_store,
        "pagoda-valkey-gcs": _gcs_store,
    }


def _api_keys(given: Sequence[str]) -> Data:
    metrics_key = f"metrics-{secrets.token_urlsafe(24)}"
    keys = [*(given or [secrets.token_urlsafe(24)]), metrics_key]
    return {"api-keys": ",".join(keys), "metrics-key": metrics_key}


def _names(namespace: str) -> list[str]:
    ends = ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
    return [f"{name}{end}" for name in VALKEYS for end in ends] + ["localhost"]


def _blocks_store() -> Data:
    password, of_exporter = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    # What kvstore sends, on its own keys; it asks CONFIG for one limit and changes none.
    rights = (
        "~pagoda:* resetchannels -@all +@read +@write +@scripting +@connection "
        "+config|get +info +cluster|slots +object|idletime -@dangerous +info +config|get +eval"
    )
    return {
        "url": f"rediss://pagoda:{password}@valkey-blocks:6379/0",
        "exporter-password": of_exporter,
        "users.acl": _acl({"pagoda": (password, rights)}, of_exporter),
    }


def _gcs_store() -> Data:
    password, of_exporter = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    return {
        "password": password,
        "exporter-password": of_exporter,
        "users.acl": _acl({"ray": (password, "~* &* +@all -@admin +info")}, of_exporter),
    }


def _acl(users: Mapping[str, tuple[str, str]], of_exporter: str) -> str:
    """An ACL file: nobody but these users and the exporter; passwords as their SHA-256."""
    exporter = "-@all +info +ping +client|setname +client|getname +config|get +latency +slowlog"
    everybody = {**users, "exporter": (of_exporter, f"resetkeys resetchannels {exporter}")}
    lines = ["user default off resetpass resetkeys resetchannels -@all"]
    for name, (password, rights) in everybody.items():
        digest = hashlib.sha256(password.encode()).hexdigest()
        lines.append(f"user {name} on resetpass #{digest} {rights}")
    return "\n".join(lines) + "\n"


def _certificate(names: Sequence[str], *, now: datetime.datetime) -> Data:
    """A certificate for these names by an authority that signs nothing else: its key is dropped."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _subject(f"{names[0]} authority")
    authority = _builder(issuer, issuer, authority_key, now=now).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    leaf = (
        _builder(_subject(names[0]), issuer, key, now=now)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), False)
        .add_extension(x509.ExtendedKeyUsage(usages), False)
    )
    pem = serialization.Encoding.PEM
    return {
        "ca.crt": authority.sign(authority_key, hashes.SHA256()).public_bytes(pem).decode(),
        "tls.crt": leaf.sign(authority_key, hashes.SHA256()).public_bytes(pem).decode(),
        "tls.key": key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    }


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    now: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + YEAR)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def manifest(name: str, data: Data, namespace: str) -> str:
    """One Secret as YAML; written by hand, since every value is base64."""
    lines = [
        "---",
        "apiVersion: v1",
        "kind: Secret",
        "type: Opaque",
        "metadata:",
        f"  name: {name}",
        f"  namespace: {namespace}",
        "  labels: {app.kubernetes.io/part-of: pagoda}",
        "data:",
    ]
    for key, value in data.items():
        lines.append(f"  {key}: {base64.b64encode(value.encode()).decode()}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the manifests to stdout."""
    parser = argparse.ArgumentParser(description="Make the secrets of an installation.")
    parser.add_argument("--namespace", default="pagoda")
    parser.add_argument("--api-key", action="append", default=[], help="a client's key; repeatable")
    parser.add_argument("--only", action="append", default=[], help="name of a secret; repeatable")
    parser.add_argument("--suffix", default="", help="put behind the names: pagoda-ray-token-2")
    options = parser.parse_args(arguments)
    now = datetime.datetime.now(datetime.UTC)
    known = makers(options.namespace, now=now, api_keys=options.api_key)
    if unknown := set(options.only) - set(known):
        parser.error(f"{min(unknown)}: expected one of {', '.join(known)}")
    end = f"-{options.suffix}" if options.suffix else ""
    for name in options.only or known:
        sys.stdout.write(manifest(f"{name}{end}", known[name](), options.namespace))
    return 0


if __name__ == "__main__":
    sys.exit(main())
