//! The recording: one file with everything that members were asked and answered, in one order over all of them, and the
//! marks of the load between. Costs a header of 32 bytes an event, and the bytes of each write.
//!
//! An event is appended under one lock: a write or a flush when the member gets it, its end before the answer is sent, a
//! mark before the load goes on. So what is earlier in the file was earlier for somebody, and a prefix is a state that a
//! power cut may leave.

use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;

const HEADER: usize = 32;
/// Each header begins with it.
const MAGIC: u8 = 0xc7;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write has reached the member; `data` is a range of the recording.
    Write {
        member: usize,
        offset: u64,
        data: Range<usize>,
        fua: bool,
    },
    /// A flush has reached the member.
    Flush { member: usize },
    /// The write or flush that is event number `of` has ended well, and this is about to be answered.
    Done { of: usize },
    /// A line of the load, or of the script.
    Mark { text: String },
}

/// Appends events to the file.
pub struct Writer {
    file: BufWriter<File>,
    next: usize,
}

impl Writer {
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> Result<Writer> {
        let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        Ok(Writer {
            file: BufWriter::with_capacity(1 << 20, file),
            next: 0,
        })
    }

    /// Number of the event.
    ///
    /// # Errors
    /// The file takes no more.
    pub fn write(&mut self, member: usize, offset: u64, data: &[u8], fua: bool) -> Result<usize> {
        self.append(0, member, u8::from(fua), offset, data)
    }

    /// As [`write`](Writer::write).
    pub fn flush(&mut self, member: usize) -> Result<usize> {
        self.append(1, member, 0, 0, &[])
    }

    /// As [`write`](Writer::write).
    pub fn done(&mut self, of: usize) -> Result<usize> {
        self.append(2, 0, 0, of as u64, &[])
    }

    /// As [`write`](Writer::write).
    pub fn mark(&mut self, text: &str) -> Result<usize> {
        self.append(3, 0, 0, 0, text.as_bytes())
    }

    /// Everything appended so far is in the file.
    ///
    /// # Errors
    /// The file takes no more.
    pub fn sync(&mut self) -> Result<()> {
        self.file.flush().context("write the recording")
    }

    fn append(
        &mut self,
        kind: u8,
        member: usize,
        flags: u8,
        at: u64,
        data: &[u8],
    ) -> Result<usize> {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&[MAGIC, kind, u8::try_from(member)?, flags]);
        header[8..16].copy_from_slice(&at.to_le_bytes());
        header[16..24].copy_from_slice(&(data.len() as u64).to_le_bytes());
        self.file
            .write_all(&header)
            .context("write the recording")?;
        self.file.write_all(data).context("write the recording")?;
        self.next += 1;
        Ok(self.next - 1)
    }
}

/// A recording, read as a whole.
pub struct Recording {
    pub events: Vec<Event>,
    bytes: Vec<u8>,
}

impl Recording {
    /// # Errors
    /// The file cannot be read, or is not a whole recording.
    pub fn read(path: &Path) -> Result<Recording> {
        let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let mut events = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            ensure!(
                bytes.len() - at >= HEADER && bytes[at] == MAGIC,
                "no event at byte {at}"
            );
            let header = &bytes[at..at + HEADER];
            let word = |from: usize| {
                u64::from_le_bytes(header[from..from + 8].try_into().expect("eight bytes"))
            };
            let (member, offset) = (usize::from(header[2]), word(8));
            let data = at + HEADER..at + HEADER + word(16) as usize;
            ensure!(
                data.end <= bytes.len(),
                "the event at byte {at} is cut short"
            );
            at = data.end;
            events.push(match header[1] {
                0 => Event::Write {
                    member,
                    offset,
                    data,
                    fua: header[3] != 0,
                },
                1 => Event::Flush { member },
                2 => Event::Done {
                    of: offset as usize,
                },
                3 => Event::Mark {
                    text: String::from_utf8_lossy(&bytes[data]).into_owned(),
                },
                kind => bail!("event {} is of kind {kind}", events.len()),
            });
        }
        Ok(Recording { events, bytes })
    }

    pub fn bytes(&self, data: &Range<usize>) -> &[u8] {
        &self.bytes[data.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, Recording, Writer};

    #[test]
    fn what_was_written_is_read() {
        let path = std::env::temp_dir().join(format!("powercut-log-{}", std::process::id()));
        let mut log = Writer::create(&path).expect("a file");
        assert_eq!(log.write(3, 4096, &[7; 512], true).expect("written"), 0);
        log.flush(2).expect("written");
        log.done(1).expect("written");
        log.mark("armed").expect("written");
        log.sync().expect("written");
        let back = Recording::read(&path).expect("whole");
        let Event::Write {
            member: 3,
            offset: 4096,
            data,
            fua: true,
        } = &back.events[0]
        else {
            panic!("{:?}", back.events[0]);
        };
        assert_eq!(back.bytes(data), [7; 512]);
        assert_eq!(
            back.events[1..3],
            [Event::Flush { member: 2 }, Event::Done { of: 1 }]
        );
        assert_eq!(
            back.events[3],
            Event::Mark {
                text: "armed".to_owned()
            }
        );
        let bytes = std::fs::read(&path).expect("bytes");
        std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("cut short");
        assert!(Recording::read(&path).is_err());
        std::fs::remove_file(&path).expect("removed");
    }
}
