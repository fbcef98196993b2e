//! Faults that can be planted in the data path, so that the simulator proves that it finds them. Compiled in only with the
//! feature `planted-bugs`, which no release build of the daemon has.

/// Faults that the simulator must find. Only with the feature `planted-bugs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Acknowledge a write whose member failed before the failure is recorded.
    AckBeforeRecord,
    /// Write data before the array is marked dirty.
    WriteWhileClean,
    /// Adjust parity that is not in sync.
    TrustStaleParity,
    /// Let two queues work on one band.
    NoOwner,
    /// Do not write Q in a read-modify-write.
    ForgetQ,
    /// Flush only the first member.
    FlushOne,
    /// Acknowledge a flush that left out a member whose loss is not recorded.
    FlushBeforeRecord,
    /// Acknowledge a partial write when its member writes begin.
    AckBeforeWrite,
    /// Give the last data chunk the exponent of the first one.
    WrongExponent,
    /// Leave a waiting band in its line when the sweep takes it.
    KeepLine,
    /// Encode what was not read: treat a failed read as done.
    IgnoreReadError,
    /// Take all rows of a chunk for lost where one cannot be read.
    LoseAllRows,
    /// Manager: take one record of a loss for two.
    RecordOnce,
    /// Manager: say clean while members still have data in their caches.
    CleanUnflushed,
    /// Manager: let a question for quiet go on after writers were let go.
    KeepRound,
    /// Manager: write to an array whose members do not agree.
    WriteWhileUneven,
    /// Write data where the bitmap has no bit yet; the bit comes after it.
    BitAfterData,
    /// Manager: let writes go when their bit is on its way to the members.
    BitBeforeDurable,
    /// Manager: clear bits without waiting for the writes under them, and for what is in caches.
    ClearEarly,
    /// Manager: clear bits although a member is missing.
    ClearWhileDegraded,
    /// Manager: write superblocks before the bitmap's header.
    HeaderBehind,
    /// Manager: take what the bitmap names for swept.
    ForgetNeeded,
    /// Manager: say in a checkpoint what no record has flushed.
    CheckpointUnflushed,
    /// Manager: publish the new frontier of a rebuild when its window begins.
    FrontierEarly,
    /// Leave out the member being filled when a partial write goes to the fill zone.
    SkipFilling,
    /// Read a member being filled directly beyond the frontier.
    ReadBeyondFrontier,
    /// A rebuild decodes from parity that is not in sync and lets it stay so.
    FillTrustsParity,
    /// A repair believes the data where P and Q say that it is wrong.
    RepairParityAlways,
}
