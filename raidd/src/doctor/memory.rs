//! Judges the memory that an array takes and locks.

use super::facts::Memory;
use super::{Finding, Status};
use crate::units::Bytes;

/// What the daemon takes besides buffers, generously: its code, stacks, rings and tables.
const BESIDES: u64 = 128 << 20;

pub(super) fn judge(memory: &Memory) -> Vec<Finding> {
    let buffers = memory.queues * memory.per_queue;
    let need = buffers + BESIDES;
    let per_array = format!(
        "an array locks {} ({} queues of {})",
        Bytes(buffers),
        memory.queues,
        Bytes(memory.per_queue)
    );
    let check = "locked memory";
    let lock = match memory.limit {
        _ if memory.may_lock => Finding::ok(check, format!("{per_array}; no limit for this user")),
        None => Finding::ok(check, format!("{per_array}; no limit")),
        Some(limit) if limit < need => Finding::new(
            Status::Warn,
            check,
            format!(
                "{per_array}, but this process may lock {}: under memory pressure an array could wait for itself",
                Bytes(limit)
            ),
            "run raidd with LimitMEMLOCK=infinity (its unit does), 'ulimit -l unlimited' or CAP_IPC_LOCK",
        ),
        Some(limit) => Finding::ok(check, format!("{per_array}; the limit is {}", Bytes(limit))),
    };
    let mut findings = vec![lock];
    if memory.total > 0 && buffers > memory.total / 2 {
        findings.push(Finding::new(
            Status::Warn,
            "memory",
            format!(
                "{per_array}, more than half of this machine's {}",
                Bytes(memory.total)
            ),
            "lower buffer_memory or queues in the configuration",
        ));
    }
    if memory.huge_pages.as_deref() == Some("never") {
        findings.push(Finding::new(
            Status::Warn,
            "huge pages",
            "off: buffers lie in small pages, which costs speed",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        Memory {
            limit: Some(8 << 20),
            may_lock: false,
            total: 64 << 30,
            queues: 8,
            per_queue: 64 << 20,
            huge_pages: Some("madvise".into()),
        }
    }

    #[test]
    fn a_small_limit_is_a_warning_unless_it_does_not_count() {
        let status = |m: &Memory| judge(m)[0].status;
        let mut m = memory();
        assert_eq!(status(&m), Status::Warn);
        assert!(judge(&m)[0].found.contains("512 MiB"), "{:?}", judge(&m)[0]);
        m.limit = Some(1 << 30);
        assert_eq!(status(&m), Status::Ok);
        m.limit = None;
        assert_eq!(status(&m), Status::Ok);
        (m.limit, m.may_lock) = (Some(8 << 20), true);
        assert_eq!(status(&m), Status::Ok);
    }

    #[test]
    fn too_much_for_the_machine_and_small_pages() {
        let mut m = memory();
        (m.total, m.huge_pages) = (512 << 20, Some("never".into()));
        let checks: Vec<_> = judge(&m).into_iter().map(|f| f.check).collect();
        assert_eq!(checks, ["locked memory", "memory", "huge pages"]);
    }
}
