//! The echo server and its client, on whatever socket an endpoint has: the bytes of a stream go back by it.
//!
//! The server's certificate is its own, made when the server starts; a client trusts that one and no other.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig, TokioRuntime,
};
use weir_socket::{QuicSocket, UdpSocket};

/// A result whose error is shown to a person.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The name that the certificate is for.
const NAME: &str = "echo";
/// Bytes in one go.
const CHUNK: usize = 64 << 10;

/// The configuration of a server with a certificate of its own; and the certificate.
pub fn server() -> Outcome<(ServerConfig, CertificateDer<'static>)> {
    let own = rcgen::generate_simple_self_signed([NAME.to_string()])?;
    let certificate = own.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    Ok((ServerConfig::with_single_cert(vec![certificate.clone()], key.into())?, certificate))
}

/// The configuration of a client that trusts the server with this certificate.
pub fn client(certificate: CertificateDer<'static>) -> Outcome<ClientConfig> {
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate)?;
    Ok(ClientConfig::with_root_certificates(Arc::new(trusted))?)
}

/// An endpoint on a socket of Weir's, and the socket; the endpoint is a server if it has a server's configuration.
pub fn endpoint(socket: UdpSocket, server: Option<ServerConfig>) -> Outcome<(Endpoint, Arc<QuicSocket>)> {
    let socket = Arc::new(QuicSocket::new(socket));
    let on_path = Arc::clone(&socket) as _;
    let config = EndpointConfig::default();
    let endpoint = Endpoint::new_with_abstract_socket(config, server, on_path, Arc::new(TokioRuntime))?;
    Ok((endpoint, socket))
}

/// Sends back the bytes of a connection's streams, until the client closes it.
pub async fn echo(connection: &Connection) {
    while let Ok((send, receive)) = connection.accept_bi().await {
        // A stream that fails is its client's matter.
        tokio::spawn(echo_stream(send, receive));
    }
}

async fn echo_stream(mut send: SendStream, mut receive: RecvStream) -> Outcome<()> {
    while let Some(chunk) = receive.read_chunk(CHUNK, true).await? {
        send.write_chunk(chunk.bytes).await?;
    }
    Ok(send.finish()?)
}

/// Opens a connection to a server.
pub async fn connect(endpoint: &Endpoint, server: SocketAddr, client: ClientConfig) -> Outcome<Connection> {
    Ok(endpoint.connect_with(client, server, NAME)?.await?)
}

/// Sends so many bytes by a stream of its own, and fails unless the same come back.
pub async fn ask(connection: &Connection, bytes: usize) -> Outcome<()> {
    let (mut send, mut receive) = connection.open_bi().await?;
    let writing = tokio::spawn(async move {
        let mut at = 0;
        while at < bytes {
            let chunk: Vec<u8> = (at..bytes.min(at + CHUNK)).map(byte_at).collect();
            send.write_all(&chunk).await?;
            at += chunk.len();
        }
        Outcome::Ok(send.finish()?)
    });
    let mut at = 0;
    while let Some(chunk) = receive.read_chunk(CHUNK, true).await? {
        if chunk.bytes.iter().enumerate().any(|(more, &byte)| byte != byte_at(at + more)) {
            return Err(format!("another byte came back than was sent, from {at} on").into());
        }
        at += chunk.bytes.len();
    }
    writing.await??;
    match at == bytes {
        true => Ok(()),
        false => Err(format!("{at} bytes came back of {bytes}").into()),
    }
}

/// The byte at a place of a stream.
fn byte_at(at: usize) -> u8 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[6]
}
