//! Who may use the control socket: root, the user the daemon runs as, and members of one configured group. Asks the
//! kernel for the peer and the user database for its groups; a few file reads per connection.

use std::ffi::CString;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};

/// Who is on the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id at the time of connecting.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
}

/// Who may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The user the daemon runs as; root may always.
    pub daemon_uid: u32,
    /// Members of this group may too.
    pub group: Option<u32>,
}

/// Why a group cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// Not in the group database.
    #[error(
        "socket.group: there is no group '{0}' on this system; create it with 'groupadd --system {0}' or change the key"
    )]
    Unknown(String),
    /// The database could not be read.
    #[error("socket.group: looking up '{0}' failed: {1}")]
    Lookup(String, nix::Error),
}

/// The id of a group by name or by number.
pub fn group_id(name: &str) -> Result<u32, GroupError> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(GroupError::Unknown(name.into())),
        Err(e) => Err(GroupError::Lookup(name.into(), e)),
    }
}

/// The kernel's word on who connected.
pub fn peer_of(stream: &UnixStream) -> Result<Peer, nix::Error> {
    let credentials = getsockopt(stream, PeerCredentials)?;
    Ok(Peer {
        pid: credentials.pid(),
        uid: credentials.uid(),
        gid: credentials.gid(),
    })
}

impl Policy {
    /// Whether this peer may use the socket.
    pub fn allows(&self, peer: Peer) -> bool {
        self.allows_with(peer, groups_of)
    }

    fn allows_with(&self, peer: Peer, groups: impl FnOnce(u32, u32) -> Vec<u32>) -> bool {
        if peer.uid == 0 || peer.uid == self.daemon_uid {
            return true;
        }
        match self.group {
            Some(group) => peer.gid == group || groups(peer.uid, peer.gid).contains(&group),
            None => false,
        }
    }
}

/// Supplementary groups from the user database; none for a user it does not know.
fn groups_of(uid: u32, gid: u32) -> Vec<u32> {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else {
        return Vec::new();
    };
    let Ok(name) = CString::new(user.name) else {
        return Vec::new();
    };
    let groups = getgrouplist(&name, Gid::from_raw(gid)).unwrap_or_default();
    groups.into_iter().map(Gid::as_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Peer = Peer {
        pid: 1,
        uid: 65534,
        gid: 65534,
    };

    #[test]
    fn root_and_the_daemons_own_user() {
        let policy = Policy {
            daemon_uid: 1000,
            group: None,
        };
        assert!(policy.allows(Peer { uid: 0, ..NOBODY }));
        assert!(policy.allows(Peer {
            uid: 1000,
            ..NOBODY
        }));
        assert!(!policy.allows(NOBODY));
    }

    #[test]
    fn the_group_as_primary_or_supplementary() {
        let policy = Policy {
            daemon_uid: 0,
            group: Some(6),
        };
        assert!(
            policy.allows_with(Peer { gid: 6, ..NOBODY }, |_, _| unreachable!(
                "primary is enough"
            ))
        );
        assert!(policy.allows_with(NOBODY, |uid, gid| {
            assert_eq!((uid, gid), (65534, 65534));
            vec![65534, 6]
        }));
        assert!(!policy.allows_with(NOBODY, |_, _| vec![65534, 7]));
        let no_group = Policy {
            daemon_uid: 0,
            group: None,
        };
        assert!(!no_group.allows_with(NOBODY, |_, _| vec![0]));
    }

    #[test]
    fn the_kernel_names_us() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = peer_of(&a).unwrap();
        assert_eq!(peer.uid, nix::unistd::getuid().as_raw());
        assert_eq!(peer.pid as u32, std::process::id());
    }

    #[test]
    fn groups_by_name_and_number() {
        assert_eq!(group_id("root").unwrap(), 0);
        assert_eq!(group_id("1234").unwrap(), 1234);
        assert!(
            group_id("no-such-group")
                .unwrap_err()
                .to_string()
                .contains("groupadd")
        );
    }
}
