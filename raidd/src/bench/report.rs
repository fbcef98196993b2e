//! Figures and how they are shown. The JSON shape is stable.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::job::Job;
use crate::units::Bytes;

/// What is counted, in every output.
pub const COUNTED: &str = "GB/s = 10^9 bytes of data per second, parity not counted: all data chunks of the stripe (lost ones \
included); for update the chunk that is written";

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// Memory of all threads together.
    pub memory_bytes: u64,
    /// CPU engines stored their results past the caches.
    pub streaming: bool,
    /// Rounds per figure.
    pub rounds: u32,
    /// Length of a round.
    pub round_ms: f64,
    /// GPUs that took part.
    pub gpus: Vec<String>,
    /// Why a GPU did not.
    pub no_gpu: Option<String>,
    /// It was stopped before it had measured everything.
    pub interrupted: bool,
    /// One for each engine, shape, heat and number of threads.
    pub rows: Vec<Row>,
}

/// The CPU.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Model, as the kernel gives it.
    pub cpu: String,
    /// CPUs of this process.
    pub cpus: usize,
    /// Largest cache.
    pub cache_bytes: Option<u64>,
}

/// One line of the table.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Engine or GPU.
    pub engine: String,
    /// Data members.
    pub data: usize,
    /// Bytes of each chunk.
    pub bytes: usize,
    /// hot or cold.
    #[serde(rename = "temperature")]
    pub heat: &'static str,
    /// At work at the same time; rates are their sum.
    pub threads: usize,
    /// By job.
    #[serde(rename = "jobs")]
    pub figures: Vec<Figure>,
}

/// One figure.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// Name of the job.
    pub job: &'static str,
    /// Median of the rounds; null if the engine does not do the job.
    pub gb_per_s: Option<f64>,
    /// Slowest round.
    pub min_gb_per_s: Option<f64>,
    /// Fastest round.
    pub max_gb_per_s: Option<f64>,
    /// Why there is no figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Figure {
    /// From the rates of the rounds, in bytes per second.
    pub fn of(job: Job, mut rates: Vec<f64>, reason: Option<String>) -> Figure {
        rates.sort_by(f64::total_cmp);
        let gb = |rate: f64| (rate / 1e6).round() / 1e3;
        let middle = rates.len() / 2;
        let median = match rates.len() {
            0 => None,
            n if n % 2 == 1 => Some(rates[middle]),
            _ => Some((rates[middle - 1] + rates[middle]) / 2.0),
        };
        Figure {
            job: job.name(),
            gb_per_s: median.map(gb),
            min_gb_per_s: rates.first().copied().map(gb),
            max_gb_per_s: rates.last().copied().map(gb),
            reason,
        }
    }

    /// Half the distance between slowest and fastest round, as a part of the median.
    pub fn spread(&self) -> Option<f64> {
        let (median, min, max) = (self.gb_per_s?, self.min_gb_per_s?, self.max_gb_per_s?);
        (median > 0.0).then(|| (max - min) / 2.0 / median)
    }

    fn cell(&self) -> String {
        match (self.gb_per_s, self.spread()) {
            (Some(rate), Some(spread)) => format!("{rate:.2} ±{:.0}%", spread * 100.0),
            (Some(rate), None) => format!("{rate:.2}"),
            _ => "-".into(),
        }
    }
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo
            .lines()
            .find_map(|l| l.strip_prefix("model name")?.split_once(": "))
            .map_or("unknown", |(_, name)| name);
        let cache = (0..8)
            .filter_map(|index| {
                let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
                let text = std::fs::read_to_string(path).ok()?;
                crate::units::parse_size(text.trim(), 1).ok()
            })
            .max();
        Machine {
            cpu: model.into(),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            cache_bytes: cache.map(|b| b.0),
        }
    }
}

impl Report {
    /// Lines for people.
    pub fn text(&self) -> String {
        let mut text = format!("{COUNTED}\n");
        text += &format!(
            "median of {} rounds of {} ms, ± half the distance between the slowest and the fastest; engines take turns\n",
            self.rounds, self.round_ms
        );
        text += &format!(
            "{}{}; hot: one stripe again and again (GPU: 16 in turn); cold: all over {}",
            self.machine.cpu,
            if self.streaming {
                ", results stored past the caches"
            } else {
                ""
            },
            Bytes(self.memory_bytes)
        );
        match self.machine.cache_bytes {
            Some(cache) if self.memory_bytes < 2 * cache => {
                text += &format!(
                    ", NOT cold: the cache has {}, use --memory {} or more",
                    Bytes(cache),
                    Bytes((2 * cache).next_multiple_of(1 << 30))
                );
            }
            Some(cache) => text += &format!(", the largest cache has {}", Bytes(cache)),
            None => {}
        }
        text.push('\n');
        for gpu in &self.gpus {
            text += &format!("{gpu}\n");
        }
        if let Some(reason) = &self.no_gpu {
            text += &format!("no GPU: {reason}\n");
        }
        let mut from = 0;
        while let Some(first) = self.rows.get(from) {
            let same = |row: &&Row| (row.data, row.threads) == (first.data, first.threads);
            let rows: Vec<&Row> = self.rows[from..].iter().take_while(same).collect();
            let threads = match first.threads {
                1 => "1 thread".to_string(),
                n => format!("{n} threads together"),
            };
            text += &format!(
                "\n{} data members, {threads}\n{}\n",
                first.data,
                table(&rows)
            );
            from += rows.len();
        }
        let mut gaps = self.rows.iter().flat_map(|row| &row.figures);
        if gaps.any(|figure| figure.gb_per_s.is_none()) {
            text += "\n-: this engine does not do such a job\n";
        }
        if self.interrupted {
            text += "\ninterrupted: the rest was not measured\n";
        }
        text
    }
}

fn table(rows: &[&Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let jobs: Vec<&str> = rows
        .first()
        .map(|r| r.figures.iter().map(|f| f.job).collect())
        .unwrap_or_default();
    let header = ["engine", "bytes", "data"].into_iter().chain(jobs);
    table.set_header(header.map(str::to_uppercase));
    for row in rows {
        let begin = [
            row.engine.clone(),
            Bytes(row.bytes as u64).to_string(),
            row.heat.to_string(),
        ];
        table.add_row(
            begin
                .into_iter()
                .chain(row.figures.iter().map(Figure::cell)),
        );
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
