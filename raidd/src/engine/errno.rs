//! The one place where a member's errno comes in and a request's errno goes out.

use raid_core::path::types::{IoKind, MemberError, RequestError};

/// What a completion of member I/O means. `bytes` were asked for; a short transfer is a failed one.
pub fn member_result(kind: IoKind, bytes: u32, result: i32) -> Result<(), MemberError> {
    if result == 0 && bytes > 0 && matches!(kind, IoKind::Read | IoKind::Write) {
        // "End of device" in the middle of a member: its size has gone to 0, as that of a pulled drive.
        return Err(MemberError::Gone);
    }
    if result >= 0 {
        let whole = match kind {
            IoKind::Read | IoKind::Write => result as u32 == bytes,
            IoKind::Flush | IoKind::Discard | IoKind::WriteZeroes => true,
        };
        return if whole {
            Ok(())
        } else {
            Err(MemberError::Medium)
        };
    }
    Err(match -result {
        libc::ENODEV | libc::ENXIO | libc::EBADF | libc::ESHUTDOWN => MemberError::Gone,
        libc::ENOSPC if kind == IoKind::Write => MemberError::Gone,
        libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL
            if matches!(kind, IoKind::Flush | IoKind::Discard | IoKind::WriteZeroes) =>
        {
            MemberError::Unsupported
        }
        _ => MemberError::Medium,
    })
}

/// What the block layer is told. An unreadable sector is EIO too, as with MD: ENODATA ("medium error") is taken by file
/// systems of many kernels for their own "no such attribute".
pub fn request_errno(error: RequestError) -> i32 {
    -match error {
        RequestError::Io | RequestError::Medium => libc::EIO,
        RequestError::Unsupported => libc::EOPNOTSUPP,
        RequestError::ReadOnly => libc::EPERM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_transfer_is_a_failed_one() {
        assert_eq!(member_result(IoKind::Read, 4096, 4096), Ok(()));
        assert_eq!(
            member_result(IoKind::Read, 4096, 512),
            Err(MemberError::Medium)
        );
        assert_eq!(member_result(IoKind::Read, 4096, 0), Err(MemberError::Gone));
        assert_eq!(member_result(IoKind::Flush, 0, 0), Ok(()));
        assert_eq!(
            member_result(IoKind::Write, 512, -libc::ENODEV),
            Err(MemberError::Gone)
        );
        assert_eq!(
            member_result(IoKind::Write, 512, -libc::EIO),
            Err(MemberError::Medium)
        );
        assert_eq!(
            member_result(IoKind::Discard, 0, -libc::EOPNOTSUPP),
            Err(MemberError::Unsupported)
        );
        assert_eq!(
            member_result(IoKind::Write, 512, -libc::EINVAL),
            Err(MemberError::Medium)
        );
    }
}
