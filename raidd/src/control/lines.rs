//! Reads lines of bounded length from a socket with bounded patience, so that a slow or babbling peer costs one
//! thread and a buffer for a while and nothing else.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Patience with the other side.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How long a connection may be silent between lines.
    pub idle: Duration,
    /// How long one line may take from its first byte to its end.
    pub line: Duration,
}

/// What came instead of a line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// Longer than allowed.
    #[error("the line is longer than {0} bytes")]
    TooLong(usize),
    /// Silence, or a line that did not end in time.
    #[error("nothing more came for too long")]
    TooSlow,
    /// The connection broke.
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
}

/// A stream cut into lines.
#[derive(Debug)]
pub struct Lines<'a> {
    stream: &'a UnixStream,
    buffer: Vec<u8>,
    limit: usize,
    patience: Patience,
}

impl<'a> Lines<'a> {
    /// Lines of at most `limit` bytes without the newline.
    pub fn new(stream: &'a UnixStream, limit: usize, patience: Patience) -> Lines<'a> {
        Lines {
            stream,
            buffer: Vec::new(),
            limit,
            patience,
        }
    }

    /// The next line without its newline, `None` at the end of the stream. What follows the last newline is dropped.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        let waiting_since = Instant::now();
        let mut line_since = (!self.buffer.is_empty()).then_some(waiting_since);
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=searched + at).collect();
                line.pop();
                return Ok(Some(line));
            }
            searched = self.buffer.len();
            if searched > self.limit {
                return Err(LineError::TooLong(self.limit));
            }
            let deadline = match line_since {
                Some(since) => since + self.patience.line,
                None => waiting_since + self.patience.idle,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LineError::TooSlow);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut piece = [0; 4096];
            match (&mut &*self.stream).read(&mut piece) {
                Ok(0) => return Ok(None),
                Ok(n) => {
                    self.buffer.extend_from_slice(&piece[..n]);
                    line_since.get_or_insert_with(Instant::now);
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    return Err(LineError::TooSlow);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const SHORT: Patience = Patience {
        idle: Duration::from_millis(60),
        line: Duration::from_millis(60),
    };

    #[test]
    fn lines_in_pieces_and_several_at_once() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let mut lines = Lines::new(&a, 10, SHORT);
        b.write_all(b"one\ntwo\nthr").unwrap();
        assert_eq!(lines.next_line().unwrap().unwrap(), b"one");
        assert_eq!(lines.next_line().unwrap().unwrap(), b"two");
        b.write_all(b"ee\n").unwrap();
        assert_eq!(lines.next_line().unwrap().unwrap(), b"three");
        drop(b);
        assert!(lines.next_line().unwrap().is_none());
    }

    #[test]
    fn too_long_and_too_slow() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let mut lines = Lines::new(&a, 10, SHORT);
        assert!(matches!(lines.next_line(), Err(LineError::TooSlow)));
        b.write_all(b"par").unwrap();
        assert!(matches!(lines.next_line(), Err(LineError::TooSlow)));
        b.write_all(&[b'x'; 100]).unwrap();
        assert!(matches!(lines.next_line(), Err(LineError::TooLong(10))));
    }

    #[test]
    fn a_byte_now_and_then_does_not_buy_time() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(15));
                if b.write_all(b"x").is_err() {
                    break;
                }
            }
        });
        let began = Instant::now();
        let result = Lines::new(&a, 1000, SHORT).next_line();
        assert!(matches!(result, Err(LineError::TooSlow)));
        assert!(began.elapsed() < Duration::from_millis(250));
        drop(a);
        writer.join().unwrap();
    }
}
