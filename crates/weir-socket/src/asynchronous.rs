//! The socket calls for tasks of tokio or any other executor: a call that would wait returns `Pending` and wakes the task when it can go on.
//!
//! Rule: a task that waits to send is woken when there is a frame to send in, and not before, as a thread is. The modes and timeouts of the
//! blocking calls mean nothing here.
//!
//! Owner: one task at a time for each direction, as for any `AsyncRead` or `AsyncWrite`. If two tasks wait in one direction, the later is woken.
//! While a thread waits in a direction, tasks wait for its lock.

use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_path::packet::PathPacket;

use crate::socket::{UdpSocket, os};
use crate::stack::Stack;
use crate::task::Asked;
use crate::tcp::control::Queue;
use crate::tcp::listener::TcpListener;
use crate::tcp::stream::TcpStream;

impl UdpSocket {
    /// Ready when the send buffer has a frame for a datagram, or the stack has ended.
    ///
    /// # Errors
    /// `BrokenPipe` if the stack has ended.
    pub fn poll_send_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut send = self.lock_send();
        match send.is_abandoned() {
            true => Poll::Ready(Err(os(libc::EPIPE))),
            false if send.ask(context.waker()) => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    /// As [`UdpSocket::send_to`], for a task.
    ///
    /// ```
    /// use weir_socket::{Stack, UdpSocket};
    ///
    /// let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24")?;
    /// let server = UdpSocket::bind(&right, "192.0.2.2:7")?;
    /// let client = UdpSocket::bind(&left, "192.0.2.1:4000")?;
    /// tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    ///     client.send_to_async(b"hello", server.local_addr()).await?;
    ///     let mut buffer = [0; 16];
    ///     assert_eq!(server.recv_from_async(&mut buffer).await?, (5, client.local_addr()));
    ///     std::io::Result::Ok(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`].
    pub async fn send_to_async(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
        poll_fn(|context| {
            self.take_error()?;
            let (source, len) = self.route_by_way(None, to, payload.len())?;
            let mut send = self.lock_send();
            if !send.ask(context.waker()) {
                return Poll::Pending;
            }
            let Some(frame) = send.take_frame() else { return Poll::Ready(Err(os(libc::EPIPE))) };
            self.send_in(&mut send, PathPacket::new(frame, 0, len), payload, [source, to], 0);
            Poll::Ready(Ok(payload.len()))
        })
        .await
    }

    /// As [`UdpSocket::recv_from`], for a task.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub async fn recv_from_async(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        poll_fn(|context| {
            let mut receive = self.lock_receive();
            loop {
                self.take_error()?;
                if !receive.ask(context.waker()) {
                    return Poll::Pending;
                }
                if let Some(received) = self.take_one(&mut receive, buffer) {
                    return Poll::Ready(Ok(received));
                }
                if receive.is_abandoned() {
                    return Poll::Ready(Err(os(libc::EPIPE)));
                }
            }
        })
        .await
    }
}

impl TcpListener {
    /// As [`TcpListener::accept`], for a task.
    ///
    /// ```
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// use weir_socket::{Stack, TcpListener, TcpStream};
    ///
    /// let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24")?;
    /// let listener = TcpListener::bind(&right, "192.0.2.2:7")?;
    /// tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    ///     let mut client = TcpStream::connect_async(&left, listener.local_addr()).await?;
    ///     let (mut server, _) = listener.accept_async().await?;
    ///     client.write_all(b"hello").await?;
    ///     client.shutdown(std::net::Shutdown::Write)?;
    ///     let mut came = String::new();
    ///     server.read_to_string(&mut came).await?;
    ///     assert_eq!(came, "hello");
    ///     std::io::Result::Ok(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let next = poll_fn(|context| {
            let mut queue = self.lock();
            loop {
                if let Some(next) = self.look(&mut queue)? {
                    return Poll::Ready(io::Result::Ok(next));
                }
                let Queue { accepted, task: (task, waits), .. } = &mut *queue;
                let there_is = || accepted.iter_mut().any(|of| !of.is_empty() || of.is_abandoned());
                if let Asked::Pending(_) = waits.ask(task, context.waker(), there_is) {
                    return Poll::Pending;
                }
            }
        });
        self.take(next.await?, |_| None)
    }
}

impl TcpStream {
    /// As [`TcpStream::connect`], for a task and to one address. The call waits on the executor's thread until the worker says that there is a place,
    /// a matter of microseconds. It waits for the other side as a task.
    ///
    /// # Errors
    /// As [`TcpStream::connect`].
    pub async fn connect_async(stack: &Stack, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::of(stack.clone(), stack.connect(address)?);
        poll_fn(|context| {
            let mut send = stream.inner.lock_send();
            match send.ask(context.waker()) {
                true => Poll::Ready(stream.inner.check_send(&send)),
                false => Poll::Pending,
            }
        })
        .await?;
        Ok(stream)
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut receiving = self.inner.lock_receive();
        loop {
            match self.inner.look(&mut receiving)? {
                Some(false) => return Poll::Ready(Ok(())),
                Some(true) => {
                    self.inner.take(&mut receiving, |bytes| {
                        let len = bytes.len().min(buffer.remaining());
                        buffer.put_slice(&bytes[..len]);
                        (len, len)
                    });
                    return Poll::Ready(Ok(()));
                }
                None if receiving.half.ask(context.waker()) => {}
                None => return Poll::Pending,
            }
        }
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut send = self.inner.lock_send();
        self.inner.check_send(&send)?;
        match send.ask(context.waker()) {
            true => Poll::Ready(self.inner.copy(&mut send, bytes)),
            false => Poll::Pending,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match TcpStream::shutdown(&self, Shutdown::Write) {
            // The stream is shut down already if the other side has ended it too.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            result => Poll::Ready(result),
        }
    }
}
