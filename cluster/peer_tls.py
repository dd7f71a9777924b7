"""Mutual TLS between gateways and replicas: secret and tokens cross hosts unread."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from cluster.config import PeersConfig

log = logging.getLogger(__name__)

# Replicas come and go at any address, so a certificate names the role and not the host.
PEER_NAME = "peer.pagoda.internal"


class PeerTlsUnusable(RuntimeError):
    """A file of the peers' certificates is missing or no key pair; planes do not open without."""


@dataclass(frozen=True, slots=True)
class PeerTls:
    """Paths of PEM files: who signs peers' certificates, and our own certificate and key.

    The certificate must be good for PEER_NAME, as server and as client.
    """

    ca_file: str
    cert_file: str
    key_file: str = field(repr=False)

    @classmethod
    def of(cls, peers: PeersConfig) -> "PeerTls | None":
        """As the settings say; None where there is to be none."""
        if not peers.peer_ca_file:
            return None
        return cls(peers.peer_ca_file, peers.peer_cert_file, peers.peer_key_file)

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a port that takes only peers with a certificate; raises PeerTlsUnusable.

        The files are looked at again with every handshake, so a renewed certificate, or an
        authority beside the old one, needs no restart.
        """
        return grpc.dynamic_ssl_server_credentials(
            self._server_configuration(), self._renewed, require_client_authentication=True
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a channel that shows our certificate and wants a peer's; raises PeerTlsUnusable."""
        ca, cert, key = self._contents()
        return grpc.ssl_channel_credentials(
            root_certificates=ca, private_key=key, certificate_chain=cert
        )

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        ca, cert, key = self._contents()
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by grpc in a thread of its own; None leaves what it has in force."""
        try:
            return self._server_configuration()
        except PeerTlsUnusable as error:
            # For a moment, while files are exchanged, one may be missing.
            log.warning("peer certificates kept as they were reason=%s", error)
            return None

    def _contents(self) -> tuple[bytes, bytes, bytes]:
        # Read at every use, so that a renewed certificate is in force with the next connection.
        try:
            ca, cert, key = (
                Path(name).read_bytes() for name in (self.ca_file, self.cert_file, self.key_file)
            )
        except OSError as error:
            raise PeerTlsUnusable(f"peer TLS: {error.filename}: {error.strerror}") from error
        return ca, cert, key


def open_port(server: grpc.aio.Server, address: str, tls: PeerTls | None) -> int:
    """Have the server listen, in clear without `tls`; returns the port."""
    if tls is None:
        return int(server.add_insecure_port(address))
    return int(server.add_secure_port(address, tls.server_credentials()))


def open_channel(
    address: str, tls: PeerTls | None, *, options: tuple[tuple[str, object], ...]
) -> grpc.aio.Channel:
    """A channel to a peer, in clear without `tls`."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    named = (*options, ("grpc.ssl_target_name_override", PEER_NAME))
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=named)
