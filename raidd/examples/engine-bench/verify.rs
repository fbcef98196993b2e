//! Whether everything is right after a load at odd places: answers, contents, P and Q.
//!
//! Three loads on one array of members in memory: whole, with two members missing, and whole again with wrong parity that a
//! sweep must put right meanwhile. A fault of the device strikes in each, three times. Afterwards the scalar engine looks
//! at every stripe.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parity_kernels::calibrate::Calibration;
use parity_kernels::{Engine as Parity, LostData, Source as Chunk};
use raid_core::geometry::{Geometry, Level};
use serde::Serialize;

use crate::devices::{Devices, Strike};
use crate::load::Kind;
use crate::members::{Backing, Members};
use crate::rig::{Rig, Setup, Variant};
use crate::source::{Model, Random, Source};

/// Faults in each load.
const STRIKES: u32 = 3;

/// What to check.
pub struct Plan {
    /// The only load, by its number, if not all.
    pub only: Option<usize>,
    /// Members, P and Q included.
    pub members: u16,
    /// Chunk in sectors.
    pub chunk: u32,
    /// Stripes.
    pub stripes: u64,
    /// Engines.
    pub queues: u16,
    /// Requests in flight in each.
    pub depth: u16,
    /// Buffer memory of each, in bytes.
    pub buffer: u64,
    /// Length of each load, in s.
    pub seconds: f64,
    /// Instructions for parity.
    pub parity: Arc<Calibration>,
    /// What members are made of.
    pub backing: Backing,
}

/// What was found in one load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Findings {
    /// Which load.
    pub load: &'static str,
    /// Who did parity.
    pub variant: String,
    /// What was done to the device in the middle.
    pub fault: String,
    /// Requests handed to the engines.
    pub issued: u64,
    /// Requests answered.
    pub completed: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Pieces that one queue gave to another.
    pub forwarded: u64,
    /// Sectors that reads gave and that were compared.
    pub sectors_read: u64,
    /// Sectors of the members that were compared afterwards.
    pub sectors_compared: u64,
    /// Sectors that were wrong, in reads or on members.
    pub sectors_wrong: u64,
    /// Sectors that hold written data.
    pub sectors_written: u64,
    /// Stripes whose P and Q were computed again, or whose missing chunks were.
    pub stripes_checked: u64,
    /// Stripes that were wrong.
    pub stripes_wrong: u64,
    /// Parity jobs of any kind.
    pub parity_jobs: u64,
    /// Whether a device took part.
    pub device: bool,
    /// Whether it was made to fail.
    pub struck: bool,
    /// Parity jobs that were handed to the device.
    pub lane_jobs: u64,
    /// Times that an engine lost its lane.
    pub lane_losses: u64,
    /// Jobs that were in flight then, and were done again by the processor.
    pub lane_redone: u64,
}

impl Findings {
    /// In one word.
    pub fn verdict(&self) -> &'static str {
        let right = self.issued == self.completed
            && self.errors == 0
            && self.sectors_wrong == 0
            && self.stripes_wrong == 0;
        let tried = self.issued > 0
            && self.stripes_checked > 0
            && self.sectors_written > 0
            && self.sectors_read > 0
            && (!self.device || self.lane_jobs > 0)
            && (!self.struck || self.lane_losses > 0);
        match (right, tried) {
            (true, true) => "right",
            (true, false) => "not tried",
            (false, _) => "WRONG",
        }
    }

    /// Whether nothing is lost and nothing wrong, and what was to be tried was tried.
    pub fn good(&self) -> bool {
        self.verdict() == "right"
    }
}

/// Runs the loads and checks. With a fault, it strikes three times in each load, whenever all lanes are open; a kernel's
/// fault once, since no lane opens in this process after it.
///
/// # Errors
/// What stopped it from going on, in words.
pub fn run(
    plan: &Plan,
    (name_of_variant, variant): (&str, &Variant),
    fault: Option<(&Devices, Strike)>,
) -> Result<Vec<Findings>, String> {
    let sectors = plan.stripes * u64::from(plan.chunk);
    let geometry = Geometry::parity(Level::Raid6, 2, plan.members, plan.chunk, sectors)
        .map_err(|e| e.to_string())?;
    let members = Members::new(&plan.backing, plan.members, sectors * 512)
        .map_err(|e| format!("members: {e}"))?;
    let source = Arc::new(Source::new(64 << 20));
    let model = Arc::new(Model::new(geometry.array_sectors()));
    let checker = Checker {
        geometry: &geometry,
        members: &members,
        source: &source,
        model: &model,
    };
    let mut all = Vec::new();
    let loads: [(&'static str, &[u16], bool); 3] = [
        ("whole", &[], false),
        ("two members missing", &[1, 3], false),
        ("sweep over wrong parity", &[], true),
    ];
    for (seed, (name, missing, sweep)) in loads.into_iter().enumerate() {
        if plan.only.is_some_and(|only| only != seed) {
            continue;
        }
        if sweep {
            checker.spoil_parity()?;
        }
        let setup = Setup {
            geometry: &geometry,
            members: &members,
            missing: missing.to_vec(),
            synced: if sweep { 0 } else { u64::MAX },
            queues: plan.queues,
            depth: plan.depth,
            buffer: plan.buffer,
            kind: Kind::Mixed,
            sweep,
            source: &source,
            hot: false,
            rate: None,
            model: Some(&model),
            seed: seed as u64,
            variant,
            parity: &plan.parity,
        };
        let (read_before, wrong_before) = model.tally();
        let rig = Rig::start(&setup).map_err(|e| format!("{name}: {e}"))?;
        let before = rig.read();
        rig.lanes_open()?;
        let begun = Instant::now();
        let quarter = Duration::from_secs_f64(plan.seconds / 4.0);
        for turn in 0..STRIKES {
            std::thread::sleep(quarter);
            if let Some((devices, strike)) = &fault {
                if turn > 0 && *strike == Strike::Trap {
                    continue;
                }
                rig.lanes_open().map_err(|e| format!("{name}: {e}"))?;
                let struck = devices.strike(*strike);
                struck.map_err(|e| format!("{name}: {strike}: {e}"))?;
            }
        }
        std::thread::sleep(quarter);
        while sweep && rig.sweeps() < 2 {
            if begun.elapsed() > Duration::from_secs(60) {
                return Err(format!("{name}: the sweep does not come to an end"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let window = rig.since(&before);
        let end = rig.stop().map_err(|e| format!("{name}: {e}"))?;
        let (read_after, wrong_after) = model.tally();
        let mut found = Findings {
            load: name,
            variant: name_of_variant.to_owned(),
            fault: fault.map_or("none".into(), |(_, strike)| strike.to_string()),
            device: matches!(variant, Variant::Device(_)),
            struck: fault.is_some(),
            issued: end.issued,
            completed: end.completed,
            errors: end.errors,
            forwarded: end.forwarded,
            sectors_read: read_after - read_before,
            sectors_wrong: wrong_after - wrong_before,
            sectors_written: model.written(),
            parity_jobs: window.counter("parity_jobs"),
            lane_jobs: window.counter("lane_jobs"),
            lane_losses: window.counter("lane_losses"),
            lane_redone: window.counter("lane_redone"),
            ..Findings::default()
        };
        checker.check(missing, &mut found)?;
        all.push(found);
    }
    Ok(all)
}

struct Checker<'a> {
    geometry: &'a Geometry,
    members: &'a Members,
    source: &'a Source,
    model: &'a Model,
}

impl Checker<'_> {
    fn chunk_bytes(&self) -> usize {
        self.geometry.chunk_sectors() as usize * 512
    }

    fn read(&self, stripe: u64, slot: u16) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; self.chunk_bytes()];
        let at = stripe * bytes.len() as u64;
        let read = self.members.read(slot, at, &mut bytes);
        read.map_err(|e| format!("member {slot}: {e}"))?;
        Ok(bytes)
    }

    fn write(&self, stripe: u64, slot: u16, bytes: &[u8]) -> Result<(), String> {
        let at = stripe * self.chunk_bytes() as u64;
        let written = self.members.write(slot, at, bytes);
        written.map_err(|e| format!("member {slot}: {e}"))
    }

    /// Compares contents with the model and P and Q with the data, stripe by stripe. What is missing is computed with the
    /// scalar engine and put on the members, so that the array is whole afterwards.
    fn check(&self, missing: &[u16], found: &mut Findings) -> Result<(), String> {
        let g = self.geometry;
        let scalar = Parity::scalar();
        let (compared, wrong) = self.model.tally();
        for stripe in 0..g.stripes() {
            let mut data = Vec::new();
            for k in 0..g.data_members() {
                let slot = g.data_slot(stripe, k);
                let lost = missing.contains(&slot);
                data.push((
                    slot,
                    g.q_exponent(stripe, k),
                    self.read(stripe, slot)?,
                    lost,
                ));
            }
            let parities = [Some(g.p_slot(stripe)), g.q_slot(stripe)];
            let mut stored = Vec::new();
            for slot in parities {
                let there = slot.filter(|s| !missing.contains(s));
                stored.push(there.map(|slot| self.read(stripe, slot)).transpose()?);
            }
            let (mut lost, left): (Vec<_>, Vec<_>) = data.iter_mut().partition(|d| d.3);
            let left: Vec<Chunk> = left.iter().map(|d| chunk(d)).collect();
            let mut outs: Vec<LostData> = lost
                .iter_mut()
                .map(|d| LostData {
                    exp: d.1,
                    out: &mut d.2,
                })
                .collect();
            let (p, q) = (stored[0].as_deref(), stored[1].as_deref());
            scalar
                .recover(&left, p, q, &mut outs)
                .map_err(|e| format!("stripe {stripe}: {e}"))?;
            let mut good = true;
            for (k, d) in data.iter().enumerate() {
                let chunk = u64::from(g.chunk_sectors());
                let lba = (stripe * u64::from(g.data_members()) + k as u64) * chunk;
                good &= self.model.compare(self.source, lba, &d.2);
            }
            let all: Vec<Chunk> = data.iter().map(|d| chunk(d)).collect();
            good &= !scalar.check(&all, p, q).any();
            if !missing.is_empty() {
                let (mut p, mut q) = (vec![0; self.chunk_bytes()], vec![0; self.chunk_bytes()]);
                scalar.encode(&all, Some(&mut p), Some(&mut q));
                for (slot, bytes) in parities.into_iter().zip([p, q]) {
                    if let Some(slot) = slot.filter(|s| missing.contains(s)) {
                        self.write(stripe, slot, &bytes)?;
                    }
                }
                for (slot, _, bytes, _) in data.iter().filter(|d| d.3) {
                    self.write(stripe, *slot, bytes)?;
                }
            }
            found.stripes_checked += 1;
            found.stripes_wrong += u64::from(!good);
        }
        let (compared_after, wrong_after) = self.model.tally();
        found.sectors_compared = compared_after - compared;
        found.sectors_wrong += wrong_after - wrong;
        Ok(())
    }

    /// Makes P, Q or both wrong in two stripes of three.
    fn spoil_parity(&self) -> Result<(), String> {
        let mut random = Random(7);
        for stripe in 0..self.geometry.stripes() {
            let [p, q] = [
                Some(self.geometry.p_slot(stripe)),
                self.geometry.q_slot(stripe),
            ];
            let victims = match stripe % 3 {
                0 => [p, None],
                1 => [q, p.filter(|_| stripe % 2 == 0)],
                _ => [None, None],
            };
            for slot in victims.into_iter().flatten() {
                let mut bytes = self.read(stripe, slot)?;
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
                self.write(stripe, slot, &bytes)?;
            }
        }
        Ok(())
    }
}

fn chunk(d: &(u16, u8, Vec<u8>, bool)) -> Chunk<'_> {
    Chunk {
        data: &d.2,
        exp: d.1,
    }
}
