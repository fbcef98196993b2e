//! The calibration on the machine at hand: short, complete and not absurd.

use std::time::{Duration, Instant};

use parity_kernels::Engine;
use parity_kernels::calibrate::{Calibration, Op};

#[test]
fn measuring_is_short_and_covers_everything() {
    // Other tests may have the processor for some time; one of five undisturbed tries is enough.
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        let table = Calibration::measure();
        shortest = shortest.min(start.elapsed());
        println!("{table}\n{:?}", start.elapsed());
        assert!(!table.is_pinned());
        for op in Op::ALL {
            assert!(
                table
                    .rows()
                    .iter()
                    .any(|row| row.op == op && row.up_to.is_none())
            );
            for bytes in [0, 512, 100_000, 1 << 30] {
                let engine = table.engine(op, bytes);
                assert_ne!(engine.name(), "scalar");
                assert!(table.cost_ns(op, bytes, false) >= 0.0);
                assert!(table.cost_ns(op, bytes, true) >= 0.0);
            }
            assert!(table.cost_ns(op, 1 << 30, false) > table.cost_ns(op, 4096, false));
        }
        let lines: Vec<String> = table.to_string().lines().map(String::from).collect();
        assert_eq!(lines.len(), table.rows().len());
        assert!(lines[0].starts_with("encode"));
    }
    assert!(shortest < Duration::from_millis(100), "{shortest:?}");
}

#[test]
fn a_pin_holds_for_everything() {
    assert!(Calibration::pinned_by_name("abacus").is_none());
    for name in Engine::NAMES {
        let Some(table) = Calibration::pinned_by_name(name) else {
            continue;
        };
        assert!(table.is_pinned());
        for op in Op::ALL {
            for bytes in [1, 1 << 12, 1 << 24] {
                assert_eq!(table.engine(op, bytes).name(), *name);
            }
        }
        assert!(table.to_string().contains("(pinned)"));
    }
}
