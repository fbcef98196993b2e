//! Writes superblocks and bytes of bitmaps, one thread per device, so that a device that hangs delays its own superblock and nobody else's.
//!
//! Each write of a superblock empties the device's cache before and after: what the superblock says must not be durable before the data that
//! it speaks of, and it must be durable itself when it is reported. Rare, so that it may allocate.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::device::aligned;
use crate::engine::mark_io_flusher;

/// Bytes on their way.
#[derive(Debug)]
pub struct Job {
    /// Given back in [`Told::Written`].
    pub id: u64,
    /// Empty the device's cache before, too.
    pub flush_first: bool,
    /// First byte on the device, and whole logical blocks.
    pub runs: Vec<(u64, Vec<u8>)>,
}

/// What a writer says.
#[derive(Debug)]
pub enum Told {
    /// A job has ended.
    Written {
        /// The device's number.
        number: u32,
        /// The job's.
        id: u64,
        /// Durable, or why not.
        result: io::Result<()>,
    },
    /// The thread has let go of the device and ends.
    Closed {
        /// The device's number.
        number: u32,
    },
}

/// The thread of one device. Dropping this ends it after what it has been given.
#[derive(Debug)]
pub struct Writer(Sender<Job>);

impl Writer {
    /// Starts the thread for the device with this number.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(number: u32, file: Arc<File>, told: Sender<Told>) -> io::Result<Writer> {
        let (jobs, inbox) = unbounded();
        std::thread::Builder::new()
            .name(format!("raidd-sb{number}"))
            .stack_size(256 << 10)
            .spawn(move || work(number, file, &inbox, &told))?;
        Ok(Writer(jobs))
    }

    /// Hands bytes over.
    pub fn write(&self, job: Job) {
        // The thread lives as long as this end of its channel.
        let _ = self.0.send(job);
    }
}

fn work(number: u32, file: Arc<File>, inbox: &Receiver<Job>, told: &Sender<Told>) {
    mark_io_flusher();
    while let Ok(job) = inbox.recv() {
        let (id, result) = (job.id, carry_out(&file, &job));
        // A keeper that is gone does not ask.
        let _ = told.send(Told::Written { number, id, result });
    }
    drop(file);
    let _ = told.send(Told::Closed { number });
}

fn carry_out(file: &File, job: &Job) -> io::Result<()> {
    if job.flush_first {
        file.sync_data()?;
    }
    for (offset, bytes) in &job.runs {
        aligned::write(file, *offset, bytes)?;
    }
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn writes_tells_and_lets_go() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let (told, hears) = unbounded();
        let writer = Writer::start(3, file.clone(), told).unwrap();
        writer.write(Job {
            id: 9,
            flush_first: true,
            runs: vec![(4096, vec![7; 512])],
        });
        let Ok(Told::Written { number, id, result }) = hears.recv() else {
            panic!("not written")
        };
        assert_eq!((number, id), (3, 9));
        result.unwrap();
        let mut back = [0; 512];
        file.read_exact_at(&mut back, 4096).unwrap();
        assert_eq!(back, [7; 512]);
        drop(writer);
        assert!(matches!(hears.recv(), Ok(Told::Closed { number: 3 })));
        assert_eq!(Arc::strong_count(&file), 1);
    }

    #[test]
    fn an_error_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, vec![0; 8192]).unwrap();
        let file = Arc::new(File::open(&path).unwrap());
        let (told, hears) = unbounded();
        let writer = Writer::start(0, file, told).unwrap();
        writer.write(Job {
            id: 1,
            flush_first: false,
            runs: vec![(0, vec![1; 512])],
        });
        let Ok(Told::Written { result, .. }) = hears.recv() else {
            panic!("not told")
        };
        assert!(result.is_err());
    }
}
