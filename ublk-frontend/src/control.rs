//! Control commands that libublk does not offer, or whose errno it hides: GET_FEATURES, SET_PARAMS with all
//! parameters, START_DEV that can be given up, TRY_STOP_DEV.
//!
//! Owns a small ring of its own and the control node. One command at a time, each blocks the calling thread; nothing
//! here is on the I/O path.

use crate::error::UblkError;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

const CONTROL_NODE: &str = "/dev/ublk-control";
const COMMAND: u64 = 1;
const CANCEL: u64 = 2;

/// A way to send single control commands.
pub struct ControlRing {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    node: File,
}

impl ControlRing {
    /// Opens the control node.
    ///
    /// # Errors
    /// [`UblkError::NoDriver`], [`UblkError::NoPermission`], [`UblkError::OpenControl`], [`UblkError::Ring`].
    pub fn open() -> Result<ControlRing, UblkError> {
        let node = File::options()
            .read(true)
            .write(true)
            .open(CONTROL_NODE)
            .map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => UblkError::NoDriver,
                io::ErrorKind::PermissionDenied => UblkError::NoPermission,
                _ => UblkError::OpenControl(e),
            })?;
        let ring = IoUring::builder().build(4).map_err(UblkError::Ring)?;
        Ok(ControlRing { ring, node })
    }

    /// Sends one command and waits for its end. `buffer` is read or written by the driver; `data` is the inline
    /// word. Asks `give_up` about ten times a second; once it says yes the command is cancelled (it then ends with
    /// EINTR or ECANCELED where the driver can be interrupted).
    ///
    /// # Errors
    /// The positive errno of the command.
    pub fn command(
        &mut self,
        op: u32,
        device: u32,
        data: u64,
        buffer: &mut [u8],
        give_up: &dyn Fn() -> bool,
    ) -> Result<i32, i32> {
        let address = if buffer.is_empty() {
            0
        } else {
            buffer.as_mut_ptr() as u64
        };
        let entry = opcode::UringCmd80::new(types::Fd(self.node.as_raw_fd()), op)
            .cmd(command_bytes(device, data, address, buffer.len() as u16))
            .build()
            .user_data(COMMAND);
        // SAFETY: the driver uses `buffer` only until the command completes; the loop below leaves this function
        // only with that completion (or ends the process), and `buffer` is borrowed exclusively all the while. The
        // control node stays open as long as `self`.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| libc::EBUSY)?;

        let tick = types::Timespec::from(Duration::from_millis(100));
        let mut cancelled = false;
        loop {
            let wait = types::SubmitArgs::new().timespec(&tick);
            match self.ring.submitter().submit_with_args(1, &wait) {
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)
                    ) => {}
                // The buffer may still be in use by the kernel, so returning is not an option.
                Err(e) => panic!("control ring broke with a command in flight: {e}"),
            }
            let mut ended = None;
            for cqe in self.ring.completion() {
                if cqe.user_data() == COMMAND {
                    ended = Some(cqe.result());
                }
            }
            if let Some(result) = ended {
                return if result < 0 { Err(-result) } else { Ok(result) };
            }
            if !cancelled && give_up() {
                cancelled = true;
                let cancel = opcode::AsyncCancel::new(COMMAND).build().user_data(CANCEL);
                // SAFETY: a cancel entry refers to no memory.
                let _ = unsafe { self.ring.submission().push(&cancel.into()) };
            }
        }
    }
}

/// The 80 command bytes: `struct ublksrv_ctrl_cmd`, then nothing.
fn command_bytes(device: u32, data: u64, address: u64, len: u16) -> [u8; 80] {
    let mut cmd = [0; 80];
    cmd[0..4].copy_from_slice(&device.to_ne_bytes());
    cmd[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    cmd[6..8].copy_from_slice(&len.to_ne_bytes());
    cmd[8..16].copy_from_slice(&address.to_ne_bytes());
    cmd[16..24].copy_from_slice(&data.to_ne_bytes());
    cmd
}

#[cfg(test)]
mod tests {
    use super::*;
    use libublk::sys::ublksrv_ctrl_cmd as Cmd;
    use std::mem::offset_of;

    #[test]
    fn command_bytes_match_the_header() {
        assert_eq!(offset_of!(Cmd, dev_id), 0);
        assert_eq!(offset_of!(Cmd, queue_id), 4);
        assert_eq!(offset_of!(Cmd, len), 6);
        assert_eq!(offset_of!(Cmd, addr), 8);
        assert_eq!(offset_of!(Cmd, data), 16);
        let bytes = command_bytes(3, 4, 5, 6);
        assert_eq!(bytes[0..4], 3u32.to_ne_bytes());
        assert_eq!(bytes[4..6], [0xff; 2]);
        assert_eq!(bytes[6..8], 6u16.to_ne_bytes());
        assert_eq!(bytes[8..16], 5u64.to_ne_bytes());
        assert_eq!(bytes[16..24], 4u64.to_ne_bytes());
        assert_eq!(bytes[24..], [0; 56]);
    }
}
