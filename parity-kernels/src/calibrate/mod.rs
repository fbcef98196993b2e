//! Which engine does which operation at which size, and what a job will cost: a table made from a few measurements at
//! start.
//!
//! [`measure`](Calibration::measure) takes less than a tenth of a second, most of it by running each engine on one
//! stripe; the decision is a pure function of the samples. Asking the table is a search through a few rows. Bytes are
//! counted as [`ArenaJob::data_bytes`] does.

mod measure;

use std::fmt;

use crate::engine::Engine;
use crate::offload::ArenaJob;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// [`Engine::encode`].
    Encode,
    /// [`Engine::update`].
    Update,
    /// [`Engine::recover`].
    Recover,
    /// [`Engine::check`].
    Check,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 4] = [Op::Encode, Op::Update, Op::Recover, Op::Check];

    /// The operation of a job.
    pub fn of(job: &ArenaJob) -> Op {
        match job {
            ArenaJob::Encode { .. } => Op::Encode,
            ArenaJob::Update { .. } => Op::Update,
            ArenaJob::Recover { .. } => Op::Recover,
            ArenaJob::Check { .. } => Op::Check,
        }
    }

    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            Op::Encode => "encode",
            Op::Update => "update",
            Op::Recover => "recover",
            Op::Check => "check",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One measurement: the time of one job.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Who ran it.
    pub engine: Engine,
    /// What it did.
    pub op: Op,
    /// Bytes of data.
    pub bytes: usize,
    /// Whether the operands came from memory rather than from a cache.
    pub cold: bool,
    /// How long it took, in ns.
    pub ns: f64,
}

/// Time as a straight line over bytes of data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Of any job, in ns.
    pub fixed_ns: f64,
    /// Of each byte of data, in ns.
    pub ns_per_byte: f64,
}

impl Line {
    /// Where nothing was measured: 5 GB/s, which is slow for a vector engine and out of reach without.
    const UNKNOWN: Line = Line {
        fixed_ns: 100.0,
        ns_per_byte: 0.2,
    };

    /// Time of a job, in ns.
    pub fn at(self, bytes: usize) -> f64 {
        self.fixed_ns + self.ns_per_byte * bytes as f64
    }

    /// The line through the smallest and the largest of some points; never falling, never below zero at the left.
    fn through(points: &[(usize, f64)]) -> Line {
        let (Some(first), Some(last)) = (
            points.iter().min_by_key(|(bytes, _)| *bytes),
            points.iter().max_by_key(|(bytes, _)| *bytes),
        ) else {
            return Line::UNKNOWN;
        };
        let (bytes, ns) = (last.0 as f64, last.1);
        let slope = match last.0 - first.0 {
            0 => ns / bytes.max(1.0),
            more => ((ns - first.1) / more as f64).clamp(0.0, ns / bytes.max(1.0)),
        };
        Line {
            fixed_ns: (ns - slope * bytes).max(0.0),
            ns_per_byte: slope,
        }
    }
}

/// Who does an operation up to a size, and at what cost.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The operation.
    pub op: Op,
    /// The row holds for jobs of at most so many bytes of data; `None`: of any size above the rows before.
    pub up_to: Option<usize>,
    /// Who is fastest.
    pub engine: Engine,
    /// Time with operands in a cache.
    pub hot: Line,
    /// Time with operands in memory.
    pub cold: Line,
}

/// The choice for this machine.
#[derive(Clone, Debug)]
pub struct Calibration {
    rows: Vec<Row>,
    pinned: bool,
}

/// An engine named earlier keeps its place unless another is faster by more than this, so that noise does not decide
/// between equals.
const CLEARLY: f64 = 0.97;

impl Calibration {
    /// Measure all engines of this machine that may be of use; takes less than 100 ms.
    pub fn measure() -> Calibration {
        Calibration::from_samples(&measure::all(&measure::candidates()), Engine::detect())
    }

    /// This engine for everything; its costs are measured.
    pub fn pinned(engine: Engine) -> Calibration {
        Calibration {
            pinned: true,
            ..Calibration::from_samples(&measure::all(&[engine]), engine)
        }
    }

    /// The engine of that name for everything, or `None` if this machine has none such.
    pub fn pinned_by_name(name: &str) -> Option<Calibration> {
        Engine::by_name(name).map(Calibration::pinned)
    }

    /// Decide from these samples. `otherwise` does what there is no sample for. Samples of equal size and temperature are
    /// compared with one another; list the engines in order of preference.
    pub fn from_samples(samples: &[Sample], otherwise: Engine) -> Calibration {
        let rows = Op::ALL
            .iter()
            .flat_map(|op| rows_of(*op, samples, otherwise));
        Calibration {
            rows: rows.collect(),
            pinned: false,
        }
    }

    /// The row for a job.
    pub fn row(&self, op: Op, bytes: usize) -> &Row {
        let fits = |row: &&Row| row.op == op && row.up_to.is_none_or(|most| bytes <= most);
        self.rows
            .iter()
            .find(fits)
            .expect("the last row of an operation has no limit")
    }

    /// Who does a job of so many bytes of data.
    pub fn engine(&self, op: Op, bytes: usize) -> Engine {
        self.row(op, bytes).engine
    }

    /// What a job will take of this processor, in ns.
    pub fn cost_ns(&self, op: Op, data_bytes: usize, cold: bool) -> f64 {
        let row = self.row(op, data_bytes);
        if cold { row.cold } else { row.hot }.at(data_bytes)
    }

    /// All rows, by operation and rising size.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Whether somebody has chosen, rather than the measurement.
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }
}

/// The rows of one operation; the last has no limit.
fn rows_of(op: Op, samples: &[Sample], otherwise: Engine) -> Vec<Row> {
    let of_op = || samples.iter().filter(|sample| sample.op == op);
    let mut sizes: Vec<usize> = of_op().filter(|s| !s.cold).map(|s| s.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();

    let mut rows: Vec<Row> = Vec::new();
    for (i, &bytes) in sizes.iter().enumerate() {
        let mut best: Option<&Sample> = None;
        for sample in of_op().filter(|s| !s.cold && s.bytes == bytes) {
            if best.is_none_or(|best| sample.ns < best.ns * CLEARLY) {
                best = Some(sample);
            }
        }
        let engine = best.map_or(otherwise, |best| best.engine);
        // Between two measured sizes the border is where both are equally far, as sizes double.
        let up_to = sizes
            .get(i + 1)
            .map(|next| ((bytes as f64) * (*next as f64)).sqrt() as usize);
        match rows.last_mut() {
            Some(last) if last.engine.name() == engine.name() => last.up_to = up_to,
            _ => rows.push(Row {
                op,
                up_to,
                engine,
                hot: Line::UNKNOWN,
                cold: Line::UNKNOWN,
            }),
        }
    }
    if rows.is_empty() {
        rows.push(Row {
            op,
            up_to: None,
            engine: otherwise,
            hot: Line::UNKNOWN,
            cold: Line::UNKNOWN,
        });
    }
    for row in &mut rows {
        let points = |cold: bool, any: bool| -> Vec<(usize, f64)> {
            let ours = |s: &&Sample| any || s.engine.name() == row.engine.name();
            let fitting = of_op().filter(|s| s.cold == cold).filter(ours);
            fitting.map(|s| (s.bytes, s.ns)).collect()
        };
        row.hot = Line::through(&points(false, false));
        // From memory all engines are about equal; where nothing is known, hot operands are the nearest.
        let cold = points(true, true);
        row.cold = if cold.is_empty() {
            row.hot
        } else {
            Line::through(&cold)
        };
    }
    rows
}

/// One line per operation, for a log or `detail`.
impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |line: Line| match line.ns_per_byte {
            0.0 => "at once".to_string(),
            slope => format!("{:.1} GB/s", 1.0 / slope),
        };
        for (i, row) in self.rows.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{:8}{:12}", row.op, row.engine.name())?;
            match row.up_to {
                Some(bytes) => write!(f, "{:>12}", format!("to {} KiB", bytes.div_ceil(1024)))?,
                None => write!(f, "{:>12}", "any size")?,
            }
            let (hot, cold) = (row.hot, row.cold);
            write!(f, "  cached {:4.0} ns + {:>10}", hot.fixed_ns, rate(hot))?;
            write!(
                f,
                "  from memory {:4.0} ns + {:>10}",
                cold.fixed_ns,
                rate(cold)
            )?;
            if self.pinned {
                f.write_str("  (pinned)")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str, op: Op, bytes: usize, cold: bool, ns: f64) -> Sample {
        let engine = Engine::by_name(name).unwrap();
        Sample {
            engine,
            op,
            bytes,
            cold,
            ns,
        }
    }

    #[test]
    fn the_fastest_at_each_size_is_chosen() {
        let samples = [
            sample("swar", Op::Encode, 1000, false, 50.0),
            sample("scalar", Op::Encode, 1000, false, 100.0),
            sample("swar", Op::Encode, 100_000, false, 9000.0),
            sample("scalar", Op::Encode, 100_000, false, 5000.0),
            sample("scalar", Op::Update, 1000, false, 1.0),
        ];
        let table = Calibration::from_samples(&samples, Engine::scalar());
        let name = |op, bytes| table.engine(op, bytes).name();
        assert_eq!(name(Op::Encode, 0), "swar");
        assert_eq!(name(Op::Encode, 10_000), "swar");
        assert_eq!(name(Op::Encode, 10_001), "scalar");
        assert_eq!(name(Op::Encode, usize::MAX), "scalar");
        assert_eq!(name(Op::Update, 1 << 20), "scalar");
        // Nothing known of these.
        assert_eq!(name(Op::Check, 1), "scalar");
        assert_eq!(table.cost_ns(Op::Check, 1000, true), 300.0);
        assert_eq!(table.rows().len(), 5);
    }

    #[test]
    fn equals_are_not_told_apart_by_noise() {
        let op = Op::Recover;
        let close = [
            sample("swar", op, 1000, false, 100.0),
            sample("scalar", op, 1000, false, 98.0),
        ];
        assert_eq!(
            Calibration::from_samples(&close, Engine::scalar())
                .engine(op, 1)
                .name(),
            "swar"
        );
        let clear = [close[0], sample("scalar", op, 1000, false, 90.0)];
        assert_eq!(
            Calibration::from_samples(&clear, Engine::scalar())
                .engine(op, 1)
                .name(),
            "scalar"
        );
    }

    #[test]
    fn costs_are_lines_through_the_samples() {
        let op = Op::Check;
        let samples = [
            sample("swar", op, 1000, false, 150.0),
            sample("swar", op, 11_000, false, 650.0),
            sample("swar", op, 1000, true, 1000.0),
            sample("swar", op, 11_000, true, 900.0),
        ];
        let table = Calibration::from_samples(&samples, Engine::scalar());
        assert_eq!(table.rows().iter().filter(|row| row.op == op).count(), 1);
        let hot = table.row(op, 1).hot;
        assert!((hot.fixed_ns - 100.0).abs() < 1e-9 && (hot.ns_per_byte - 0.05).abs() < 1e-12);
        assert!((table.cost_ns(op, 5000, false) - 350.0).abs() < 1e-9);
        // A line that would fall is flat instead.
        assert_eq!(table.cost_ns(op, 0, true), 900.0);
        assert_eq!(table.cost_ns(op, 1 << 20, true), 900.0);
    }

    #[test]
    fn a_line_never_begins_below_zero() {
        assert_eq!(
            Line::through(&[(10, 1.0), (20, 30.0)]),
            Line {
                fixed_ns: 0.0,
                ns_per_byte: 1.5
            }
        );
        assert_eq!(Line::through(&[(10, 5.0)]).at(20), 10.0);
        assert_eq!(Line::through(&[]), Line::UNKNOWN);
    }
}
