//! The text is what a Prometheus server takes: every line parses, names follow the rules, values are those of `detail`.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::array_api::{GpuStatus, LaneStatus, MemberState, ParityChoice, SweepKind};
use crate::control::protocol::{ArrayView, MemberView, SweepView};
use crate::engine::Counters;

fn array(name: &str) -> DetailView {
    let counters = Counters::default().read();
    DetailView {
        array: ArrayView {
            name: name.into(),
            uuid: "11223344:55667788:99aabbcc:ddeeff00".into(),
            level: 6,
            chunk_bytes: 65536,
            size_bytes: 1 << 40,
            device: Some("/dev/ublkb0".into()),
            members: vec![
                MemberView {
                    slot: Some(0),
                    path: Some("/dev/nvme0n1".into()),
                    number: Some(0),
                    state: MemberState::InSync,
                },
                MemberView {
                    slot: Some(1),
                    path: None,
                    number: None,
                    state: MemberState::Missing,
                },
            ],
            state: "active, degraded".into(),
        },
        layout: "left-symmetric".into(),
        health: Health::Degraded,
        degraded: 1,
        resync: Some(SweepView {
            kind: SweepKind::Resync,
            percent: 50.0,
            done_bytes: 512,
            total_bytes: 1024,
            rate_bytes_per_s: 7,
            eta_seconds: Some(1),
        }),
        parity: vec![
            ParityChoice {
                operation: "encode".into(),
                engine: "avx2".into(),
                up_to_bytes: Some(65536),
            },
            ParityChoice {
                operation: "encode".into(),
                engine: "avx512".into(),
                up_to_bytes: None,
            },
        ],
        gpu: GpuStatus {
            setting: "auto".into(),
            unavailable: None,
            lanes: vec![
                LaneStatus {
                    device: "GPU 0".into(),
                    state: LaneState::Active,
                    reason: None,
                    since: 1000,
                    failed_opens: 0,
                },
                LaneStatus {
                    device: "GPU 0".into(),
                    state: LaneState::Lost,
                    reason: Some("it is gone".into()),
                    since: 2000,
                    failed_opens: 3,
                },
            ],
        },
        counters: counters
            .iter()
            .enumerate()
            .map(|(i, (name, _))| (name.to_string(), i as u64 + 1))
            .collect(),
        ..bare()
    }
}

fn bare() -> DetailView {
    let text = r#"{
        "name": "bare", "uuid": "0", "level": 5, "chunk_bytes": 1, "size_bytes": 1, "device": null, "members": [],
        "state": "clean", "layout": "left-symmetric", "layout_number": 2, "member_bytes": 1, "logical_block": 512,
        "events": 17, "degraded": 0, "health": "optimal", "clean": true, "read_only": false, "resync": null,
        "parity_engine": "avx2", "ublk_features": [], "counters": {}
    }"#;
    serde_json::from_str(text).unwrap()
}

/// Values by name and labels, and types by name. Panics on what the format does not allow.
fn parse(text: &str) -> (BTreeMap<String, f64>, BTreeMap<String, String>) {
    let (mut samples, mut types, mut helped) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(
                !help.is_empty() && helped.insert(name.to_string()),
                "{line}"
            );
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(helped.contains(name), "{line}");
            assert!(
                types.insert(name.to_string(), kind.to_string()).is_none(),
                "{line}"
            );
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(
                name.starts_with("raidd_") && name.chars().all(legal),
                "{line}"
            );
            assert!(types.contains_key(name), "{line}");
            assert_eq!(series.contains('{'), series.ends_with('}'), "{line}");
            let value = value.parse().unwrap();
            assert!(
                samples.insert(series.to_string(), value).is_none(),
                "{line}"
            );
        }
    }
    (samples, types)
}

#[test]
fn names_follow_the_conventions() {
    let (_, types) = parse(&text("0.1.0", &[array("a"), array("b"), bare()]).unwrap());
    assert!(types.len() > 20);
    for (name, kind) in &types {
        let grows = name.ends_with("_total");
        assert_eq!(kind, if grows { "counter" } else { "gauge" }, "{name}");
        let words: Vec<&str> = name.split('_').collect();
        for unit in ["ns", "ms", "us", "kib", "kb", "mb", "sectors"] {
            assert!(!words.contains(&unit), "{name}: not a base unit");
        }
    }
}

#[test]
fn every_counter_of_the_engine_has_a_name_of_its_own() {
    let mut sheet = Sheet::default();
    for (counter, _) in Counters::default().read() {
        from_counter(&mut sheet, ("array", "a"), counter, 1).unwrap();
    }
    for line in sheet.text().unwrap().lines() {
        assert!(
            !line.contains("engine's own name"),
            "{line}: add it to counters.rs"
        );
    }
}

#[test]
fn values_are_those_of_detail() {
    let (samples, _) = parse(&text("0.1.0", &[array("a"), bare()]).unwrap());
    let value = |series: &str| {
        *samples
            .get(series)
            .unwrap_or_else(|| panic!("no {series} in {samples:#?}"))
    };
    assert_eq!(value("raidd_arrays"), 2.0);
    assert_eq!(value("raidd_build_info{version=\"0.1.0\"}"), 1.0);
    assert_eq!(
        value("raidd_array_size_bytes{array=\"a\"}"),
        (1u64 << 40) as f64
    );
    assert_eq!(value("raidd_array_events{array=\"bare\"}"), 17.0);
    assert_eq!(
        value("raidd_array_health{array=\"a\",health=\"degraded\"}"),
        1.0
    );
    assert_eq!(
        value("raidd_array_health{array=\"a\",health=\"optimal\"}"),
        0.0
    );
    assert_eq!(
        value("raidd_sweep_done_bytes{array=\"a\",kind=\"resync\"}"),
        512.0
    );
    // The counters are numbered from 1 in the order in which the engine has them.
    assert_eq!(value("raidd_requests_total{array=\"a\",op=\"read\"}"), 1.0);
    assert_eq!(
        value("raidd_request_bytes_total{array=\"a\",op=\"read\"}"),
        4.0 * 512.0
    );
    assert_eq!(
        value("raidd_band_writes_total{array=\"a\",way=\"full\"}"),
        6.0
    );
    assert_eq!(value("raidd_member_ios_in_flight{array=\"a\"}"), 17.0);
    assert!(
        samples
            .keys()
            .any(|s| s.contains("slot=\"1\"") && s.contains("state=\"missing\""))
    );
}

#[test]
fn engines_and_lanes_are_told_apart() {
    let (samples, _) = parse(&text("0.1.0", &[array("a"), bare()]).unwrap());
    let of = |name: &str, labels: &[&str]| {
        let mut found = samples.iter().filter(|(series, _)| {
            series.starts_with(&format!("{name}{{")) && labels.iter().all(|l| series.contains(l))
        });
        let value = found
            .next()
            .unwrap_or_else(|| panic!("{name} {labels:?}"))
            .1;
        assert!(found.next().is_none(), "{name} {labels:?}");
        *value
    };
    let engine = "raidd_parity_engine_info";
    assert_eq!(
        of(
            engine,
            &["operation=\"encode\"", "up_to_bytes=\"65536\"", "\"avx2\""]
        ),
        1.0
    );
    assert_eq!(
        of(
            engine,
            &["operation=\"encode\"", "up_to_bytes=\"+Inf\"", "\"avx512\""]
        ),
        1.0
    );
    assert_eq!(
        of("raidd_lane_state", &["queue=\"0\"", "state=\"active\""]),
        1.0
    );
    assert_eq!(
        of("raidd_lane_state", &["queue=\"0\"", "state=\"lost\""]),
        0.0
    );
    assert_eq!(
        of("raidd_lane_state", &["queue=\"1\"", "state=\"lost\""]),
        1.0
    );
    assert_eq!(
        of("raidd_lane_state_timestamp_seconds", &["queue=\"1\""]),
        2000.0
    );
    let opens = "raidd_lane_failed_opens_total";
    assert_eq!(of(opens, &["queue=\"0\""]), 0.0);
    assert_eq!(of(opens, &["queue=\"1\""]), 3.0);
}

/// It was 1 only where no device had been found: while each lane was lost, an alert on it slept.
#[test]
fn no_gpu_can_be_used_unless_a_lane_takes_jobs() {
    let unavailable = |change: &dyn Fn(&mut GpuStatus)| {
        let mut view = array("a");
        change(&mut view.gpu);
        let (samples, _) = parse(&text("0.1.0", &[view]).unwrap());
        let mut found = samples
            .iter()
            .filter(|(series, _)| series.starts_with("raidd_gpu_unavailable{"));
        let value = *found.next().unwrap().1;
        assert!(found.next().is_none());
        value
    };
    assert_eq!(unavailable(&|_| ()), 0.0);
    for state in [LaneState::Opening, LaneState::Lost, LaneState::Stuck] {
        let all = |gpu: &mut GpuStatus| gpu.lanes.iter_mut().for_each(|lane| lane.state = state);
        assert_eq!(unavailable(&all), 1.0, "{state:?}");
    }
    let none = |gpu: &mut GpuStatus| {
        gpu.lanes.clear();
        gpu.unavailable = Some("no driver".into());
    };
    assert_eq!(unavailable(&none), 1.0);
    let off = |gpu: &mut GpuStatus| {
        gpu.lanes.clear();
        gpu.setting = "off".into();
    };
    assert_eq!(unavailable(&off), 0.0);
}

#[test]
fn a_daemon_without_arrays_says_so() {
    let (samples, _) = parse(&text("0.1.0", &[]).unwrap());
    assert_eq!(samples["raidd_arrays"], 0.0);
    assert_eq!(samples.len(), 2);
}

#[test]
fn names_of_arrays_cannot_break_the_format() {
    let text = text("0.1.0", &[array("a\"} 1\nraidd_evil 1\\")]).unwrap();
    assert!(
        !text.lines().any(|line| line.starts_with("raidd_evil")),
        "{text}"
    );
    let (samples, _) = parse(&text);
    assert!(
        samples
            .keys()
            .any(|s| s.contains("\\n") && s.contains("\\\\")),
        "{samples:#?}"
    );
}
