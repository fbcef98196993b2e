//! What a queue makes of the manager's word: a new view of the array, members that came into a slot, a question for quiet. Costs
//! nothing between such messages.

use super::queue::QueueCore;
use super::types::*;

impl QueueCore {
    pub(crate) fn new_view(&mut self, view: View, out: &mut Actions) {
        let changed = (view.epoch, view.fill) != (self.view.epoch, self.view.fill);
        if view.filling != self.view.filling {
            self.new_members(&view);
        }
        self.view = view;
        self.doubtful = view.doubtful();
        if changed {
            let msg = Msg::ViewAck {
                queue: self.cfg.queue,
                epoch: view.epoch,
                fill: view.fill,
            };
            out.list.push(Action::Send {
                to: Peer::Manager,
                msg,
            });
        }
        if view.writable || view.failed || view.read_only {
            self.need_dirty_sent = false;
            while let Some(tag) = self.parked.pop_front() {
                if view.writable && !view.failed {
                    self.admit.push_back(tag);
                } else {
                    self.refuse(tag, RequestError::Io, out);
                }
            }
        }
        if view.failed {
            self.bits_changed(out);
        }
        self.release_held(out);
        for i in (0..self.held_flushes.len()).rev() {
            let tag = self.held_flushes[i];
            let failed = self.reqs[usize::from(tag)].failed;
            if self.recorded(&failed) {
                self.held_flushes.swap_remove(i);
                self.maybe_complete(tag, out);
            }
        }
    }

    /// Slots got members that are to be filled. The failures of those before them are recorded and of no more concern.
    fn new_members(&mut self, view: &View) {
        for slot in view.filling.iter() {
            if self.view.filling.contains(slot) {
                continue;
            }
            self.joined[usize::from(slot)] = view.epoch;
            for op in 0..self.ops.capacity() as u32 {
                if let Some(state) = self.ops.get_mut(op) {
                    state.failed.remove(slot);
                }
            }
            for req in &mut self.reqs {
                req.failed.remove(slot);
            }
        }
    }

    pub(crate) fn quiesce(&mut self, round: u32, out: &mut Actions) {
        let quiet = self.active_writes == 0
            && self.ops.in_use() == 0
            && self.foreign.is_empty()
            && self.sweep.is_none()
            && !self.wrote;
        self.wrote = false;
        if quiet {
            self.view.writable = false;
        }
        let msg = Msg::Quiet {
            queue: self.cfg.queue,
            round,
            quiet,
        };
        out.list.push(Action::Send {
            to: Peer::Manager,
            msg,
        });
    }
}
