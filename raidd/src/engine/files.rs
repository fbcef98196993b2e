//! The members' files as one engine knows them: which file a slot has now, and files that were taken away while I/O was in
//! flight on them. A file is let go after its last completion and not before, since what the kernel has of it is a number.
//!
//! A slot's file is found by two array accesses. Changes come from the manager's thread, are rare and may allocate.

use std::fs::File;
use std::sync::Arc;

use crossbeam_channel::Sender;

/// A member as an engine sees it.
#[derive(Clone, Debug)]
pub struct EngineMember {
    /// Open for direct I/O.
    pub file: Arc<File>,
    /// First byte of its data area.
    pub data_offset: u64,
}

/// Gives a slot another file, or takes its file away. The sender knows that the queue's core issues no I/O to the slot meanwhile.
#[derive(Clone, Debug)]
pub struct MemberChange {
    /// Which slot.
    pub slot: u16,
    /// Its file from now on.
    pub member: Option<EngineMember>,
    /// Sent to `done` once the new file is in use, or without one: once the old one has been let go.
    pub ticket: u64,
    /// Where the answer goes.
    pub done: Sender<u64>,
}

#[derive(Debug)]
struct Place {
    member: EngineMember,
    /// I/O under way.
    flying: u32,
    /// No slot has it any more.
    leaving: bool,
    /// Who waits for it to be let go.
    waits: Option<(u64, Sender<u64>)>,
}

/// See the module comment.
#[derive(Debug)]
pub(super) struct Files {
    places: Vec<Option<Place>>,
    by_slot: Vec<Option<u16>>,
}

impl Files {
    /// Members by slot; none where missing.
    pub fn new(members: Vec<Option<EngineMember>>) -> Files {
        let mut files = Files {
            places: Vec::with_capacity(members.len() + 4),
            by_slot: vec![None; members.len()],
        };
        for (slot, member) in members.into_iter().enumerate() {
            files.by_slot[slot] = member.map(|member| files.place(member));
        }
        files
    }

    fn place(&mut self, member: EngineMember) -> u16 {
        let place = Some(Place {
            member,
            flying: 0,
            leaving: false,
            waits: None,
        });
        let free = self.places.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[index] = place;
        index as u16
    }

    /// Counts an I/O on the slot's file; gives the file and the number that [`Files::ended`] wants.
    #[inline]
    pub fn begin(&mut self, slot: u16) -> Option<(u16, &EngineMember)> {
        let index = self.by_slot[usize::from(slot)]?;
        let place = self.places[usize::from(index)].as_mut()?;
        place.flying += 1;
        Some((index, &place.member))
    }

    /// An I/O has ended.
    #[inline]
    pub fn ended(&mut self, index: u16) {
        let place = self.places[usize::from(index)].as_mut();
        let place = place.expect("a file with I/O in flight is kept");
        place.flying -= 1;
        if place.leaving && place.flying == 0 {
            self.let_go(index);
        }
    }

    fn let_go(&mut self, index: u16) {
        if let Some(place) = self.places[usize::from(index)].take() {
            drop(place.member);
            if let Some((ticket, done)) = place.waits {
                // A manager that is gone waits for nothing.
                let _ = done.send(ticket);
            }
        }
    }

    /// Carries a change out, as far as it can be now.
    pub fn change(&mut self, change: MemberChange) {
        let MemberChange {
            slot,
            member,
            ticket,
            done,
        } = change;
        let new = member.map(|member| self.place(member));
        let old = std::mem::replace(&mut self.by_slot[usize::from(slot)], new);
        let waits = match new {
            Some(_) => {
                let _ = done.send(ticket);
                None
            }
            None => Some((ticket, done)),
        };
        let Some(index) = old else {
            if let Some((ticket, done)) = waits {
                let _ = done.send(ticket);
            }
            return;
        };
        let place = self.places[usize::from(index)].as_mut();
        let place = place.expect("a slot's file is kept");
        (place.leaving, place.waits) = (true, waits);
        if place.flying == 0 {
            self.let_go(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, unbounded};

    fn member() -> (EngineMember, Arc<File>) {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let member = EngineMember {
            file: file.clone(),
            data_offset: 4096,
        };
        (member, file)
    }

    fn change(files: &mut Files, slot: u16, member: Option<EngineMember>) -> Receiver<u64> {
        let (done, answers) = unbounded();
        files.change(MemberChange {
            slot,
            member,
            ticket: 7,
            done,
        });
        answers
    }

    #[test]
    fn a_file_with_io_in_flight_is_let_go_after_its_end() {
        let (a, file) = member();
        let mut files = Files::new(vec![None, Some(a)]);
        assert!(files.begin(0).is_none());
        let (first, _) = files.begin(1).unwrap();
        let (second, _) = files.begin(1).unwrap();
        let answers = change(&mut files, 1, None);
        assert!(files.begin(1).is_none());
        files.ended(first);
        assert!(answers.try_recv().is_err());
        assert_eq!(Arc::strong_count(&file), 2);
        files.ended(second);
        assert_eq!(answers.try_recv(), Ok(7));
        assert_eq!(Arc::strong_count(&file), 1);
    }

    #[test]
    fn a_new_file_does_not_wait_for_the_old_one() {
        let (a, old) = member();
        let (b, new) = member();
        let mut files = Files::new(vec![Some(a)]);
        let (late, _) = files.begin(0).unwrap();
        let answers = change(&mut files, 0, Some(b));
        assert_eq!(answers.try_recv(), Ok(7));
        let (index, used) = files.begin(0).unwrap();
        assert!(Arc::ptr_eq(&used.file, &new) && index != late);
        files.ended(late);
        assert_eq!(Arc::strong_count(&old), 1);
        files.ended(index);
        assert_eq!(Arc::strong_count(&new), 2, "still the slot's");
        // Its place is taken again.
        let (c, _file) = member();
        change(&mut files, 0, Some(c));
        assert_eq!(files.places.len(), 2);
    }

    #[test]
    fn a_slot_without_a_file_is_empty_at_once() {
        let mut files = Files::new(vec![None]);
        assert_eq!(change(&mut files, 0, None).try_recv(), Ok(7));
    }
}
