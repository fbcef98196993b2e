//! What a reader may see. For every sector the writes that may still be visible, with the times at which they were sent and
//! answered; a write hides another only if it was sent after the other's answer. Costs a short list a sector.

/// One write of one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    id: u64,
    value: u64,
    sent: u64,
    /// `u64::MAX` while in flight.
    answered: u64,
    ok: bool,
}

/// The model of the array's content.
#[derive(Clone, Debug)]
pub struct Oracle {
    sectors: Vec<Vec<Entry>>,
    /// From when to when anything was allowed here; the start is 0 if never.
    any: Vec<(u64, u64)>,
    /// Everything answered before this moment is durable.
    durable: u64,
}

impl Oracle {
    /// An array with this content, durable.
    pub fn new(content: &[u64]) -> Oracle {
        Oracle {
            sectors: content.iter().map(|v| vec![certain(*v)]).collect(),
            any: vec![(0, 0); content.len()],
            durable: 0,
        }
    }

    /// A write of `value` was sent.
    pub fn sent(&mut self, lba: u64, id: u64, value: u64, now: u64) {
        self.sectors[lba as usize].push(Entry {
            id,
            value,
            sent: now,
            answered: u64::MAX,
            ok: false,
        });
    }

    /// It was answered. `oldest`: when the oldest request still in flight was sent.
    pub fn answered(&mut self, lba: u64, id: u64, ok: bool, now: u64, oldest: u64) {
        let list = &mut self.sectors[lba as usize];
        let e = list
            .iter_mut()
            .find(|e| e.id == id)
            .expect("it was sent once");
        (e.answered, e.ok) = (now, ok);
        let (since, until) = &mut self.any[lba as usize];
        if ok && e.sent > *since {
            *until = now.min(*until);
        }
        // What neither a reader in flight nor a power cut can bring back is forgotten.
        let before = self.durable.min(oldest);
        let hides = list
            .iter()
            .filter(|w| w.ok && w.answered < before)
            .map(|w| w.sent)
            .max();
        if let Some(sent) = hides {
            list.retain(|e| e.answered >= sent);
        }
    }

    /// A flush that was sent at this moment has succeeded.
    pub fn flushed(&mut self, sent: u64) {
        self.durable = self.durable.max(sent);
    }

    /// From now on nothing is promised about a sector, until it is written.
    pub fn undefined(&mut self, lba: u64, now: u64) {
        self.any[lba as usize] = (now.max(1), u64::MAX);
    }

    /// May a read that was sent at this moment return the value?
    pub fn allows(&self, lba: u64, value: u64, sent: u64) -> bool {
        self.allowed_by(lba, value, sent)
    }

    /// May the sector hold the value after a power cut?
    pub fn survives(&self, lba: u64, value: u64) -> bool {
        self.allowed_by(lba, value, self.durable)
    }

    fn allowed_by(&self, lba: u64, value: u64, before: u64) -> bool {
        let list = &self.sectors[lba as usize];
        let hides = list
            .iter()
            .filter(|w| w.ok && w.answered < before)
            .map(|w| w.sent)
            .max()
            .unwrap_or(0);
        let (since, until) = self.any[lba as usize];
        (since != 0 && until >= before)
            || list.iter().any(|e| e.value == value && e.answered >= hides)
    }

    /// After a power cut this was found, and it is durable.
    pub fn settle(&mut self, lba: u64, value: u64) {
        self.sectors[lba as usize] = vec![certain(value)];
        self.any[lba as usize] = (0, 0);
    }

    /// This may be found, too, after another power cut: the member that holds it may come back.
    pub fn also(&mut self, lba: u64, value: u64) {
        self.sectors[lba as usize].push(certain(value));
    }

    /// After a power cut nothing is in flight any more.
    pub fn all_answered(&mut self, now: u64) {
        for e in self.sectors.iter_mut().flatten() {
            e.answered = e.answered.min(now);
        }
    }

    /// For a message: what would have been allowed.
    pub fn describe(&self, lba: u64) -> String {
        format!(
            "{:x?}, durable before {}",
            self.sectors[lba as usize], self.durable
        )
    }
}

fn certain(value: u64) -> Entry {
    Entry {
        id: 0,
        value,
        sent: 0,
        answered: 0,
        ok: true,
    }
}
