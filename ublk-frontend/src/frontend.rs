//! The contract between a source of requests and an engine. Owns no state and costs nothing.
//!
//! Life of a tag: `prime` gives every tag to the source; a [`Event::Request`] hands it to the engine, which copies
//! bytes and finally calls `commit`, which hands it back. After the device was stopped each tag ends once
//! ([`Event::Ended`]); when all have, `stopped` is true and the engine may drop the frontend. Between request and
//! commit the tag's bytes may be copied any number of times, never afterwards.
//!
//! Threads: all calls for one frontend come from one thread (the driver binds a tag to the task that fetched it).

use crate::convert::Request;
use io_uring::squeue::SubmissionQueue;
use std::os::fd::BorrowedFd;

/// Bit of `user_data` that marks completions of the frontend; the low 16 bits are the tag.
pub const UBLK_KEY: u64 = 1 << 63;

/// A request handed to the engine. It must be answered by [`Frontend::commit`] with the same tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an unanswered request hangs its client"]
pub struct Fetched {
    /// Names the request until its commit.
    pub tag: u16,
    /// The request, or the negative errno to commit at once (an operation that is not supported).
    pub request: Result<Request, i32>,
    /// The request's pages are registered in the ring's buffer table at index `tag`; addresses for READ_FIXED and
    /// the like are byte offsets within the request.
    pub auto_buf: bool,
}

/// What a completion of the frontend meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A request came in.
    Request(Fetched),
    /// One tag ended: the device is stopping, or the kernel refused the command (see [`Frontend::fault`]).
    Ended,
}

/// A source of requests for one queue.
///
/// Methods that push commands never fail for a full submission queue: what does not fit waits inside and is pushed
/// by the next [`flush`](Frontend::flush), which the engine calls once before each submit.
pub trait Frontend {
    /// Number of tags: at most this many requests are in the engine at once.
    fn depth(&self) -> u16;

    /// Whether requests may arrive with `auto_buf`. If so, the engine's ring must have a (sparse) buffer table with
    /// at least `depth` entries before `prime`, and indices below `depth` belong to the frontend.
    fn auto_buf(&self) -> bool;

    /// Offers all tags. Call once, on the engine's thread, before [`crate::Device::start`] can succeed.
    fn prime(&mut self, sq: &mut SubmissionQueue<'_>);

    /// Pushes commands that did not fit earlier. Returns how many still wait.
    fn flush(&mut self, sq: &mut SubmissionQueue<'_>) -> usize;

    /// Takes a completion whose `user_data` has [`UBLK_KEY`] set.
    ///
    /// # Panics
    /// On a key that this frontend never used: the engine mixed up its rings.
    fn on_cqe(&mut self, user_data: u64, res: i32) -> Event;

    /// A descriptor that becomes readable when [`next_request`](Frontend::next_request) has something; the engine
    /// polls it in its ring. `None` where requests arrive as completions.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Requests that arrive without a completion, until `None`. Always `None` where `wake_fd` is.
    fn next_request(&mut self) -> Option<Fetched>;

    /// Answers a request and offers its tag again. `result`: the byte length of a read or write, 0 for the other
    /// operations ([`Request::success`] gives the right one), or a negative errno.
    ///
    /// # Panics
    /// If the tag is not with the engine.
    fn commit(&mut self, sq: &mut SubmissionQueue<'_>, tag: u16, result: i32);

    /// Copies bytes of a WRITE request, from byte `offset` of the request on, into the spans one after another:
    /// all of them or a negative errno.
    ///
    /// `qid` is the queue that fetched the request: this one, or another one of the same device whose engine has lent the
    /// request and waits for word before it commits.
    ///
    /// # Panics
    /// If the tag is of this queue and not with the engine.
    fn copy_in<'a>(
        &mut self,
        qid: u16,
        tag: u16,
        offset: u32,
        dst: impl IntoIterator<Item = &'a mut [u8]>,
    ) -> Result<(), i32>;

    /// Copies the spans one after another into a READ request, from byte `offset` of the request on: all of them or
    /// a negative errno.
    ///
    /// `qid` as in [`copy_in`](Frontend::copy_in).
    ///
    /// # Panics
    /// If the tag is of this queue and not with the engine.
    fn copy_out<'a>(
        &mut self,
        qid: u16,
        tag: u16,
        offset: u32,
        src: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), i32>;

    /// Requests handed to the engine and not yet committed.
    fn in_engine(&self) -> u16;

    /// All tags ended: no request will come any more and none is owed.
    fn stopped(&self) -> bool;

    /// The first positive errno with which the kernel refused one of our commands; none in a sound system.
    fn fault(&self) -> Option<i32>;
}
