//! Which engine uses which of several devices: the nearest by NUMA distance, equally near ones in turn, each device only so
//! many. Pure, once per start.

/// Device for each engine, as indices into `devices`. Nodes are NUMA nodes, none where unknown; `distance` as the kernel
/// tells it, none where unknown.
///
/// Engines are dealt out one by one: to the device that is nearest, among equally near ones to the one with the fewest
/// engines so far. Where either node is unknown, all devices count as equally near. A device with `most` engines gets no
/// more; an engine for which none is left has none.
pub fn spread(
    engines: &[Option<u32>],
    devices: &[Option<u32>],
    most: usize,
    distance: impl Fn(u32, u32) -> Option<u32>,
) -> Vec<Option<usize>> {
    let mut load = vec![0usize; devices.len()];
    let far = |engine: Option<u32>, device: Option<u32>| match (engine, device) {
        (Some(a), Some(b)) => distance(a, b),
        _ => None,
    };
    engines
        .iter()
        .map(|engine| {
            let known = devices.iter().all(|d| far(*engine, *d).is_some());
            let key = |i: &usize| {
                let d = if known {
                    far(*engine, devices[*i])
                } else {
                    None
                };
                (d.unwrap_or(0), load[*i], *i)
            };
            let best = (0..devices.len())
                .filter(|i| load[*i] < most)
                .min_by_key(key)?;
            load[best] += 1;
            Some(best)
        })
        .collect()
}

/// Most blocks of one lane. Each more makes large jobs faster and small ones later: docs/measurements/gpu-h200.
const MOST_BLOCKS: usize = 4;

/// Blocks for each of `lanes` lanes to one device that may keep `most` blocks in all: a power of two, at least 1.
pub fn blocks_each(lanes: usize, most: usize) -> u32 {
    let fair = (most / lanes.max(1)).clamp(1, MOST_BLOCKS);
    1 << fair.ilog2()
}

/// The kernel's NUMA distance between two nodes.
pub fn kernel_distance(a: u32, b: u32) -> Option<u32> {
    let path = format!("/sys/devices/system/node/node{a}/distance");
    let text = std::fs::read_to_string(path).ok()?;
    text.split_whitespace().nth(b as usize)?.parse().ok()
}

/// NUMA node of a CPU.
pub fn node_of_cpu(cpu: usize) -> Option<u32> {
    let folder = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}")).ok()?;
    folder.flatten().find_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("node")?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_sockets(a: u32, b: u32) -> Option<u32> {
        Some(if a == b { 10 } else { 21 })
    }

    fn dealt(
        engines: &[Option<u32>],
        devices: &[Option<u32>],
        distance: impl Fn(u32, u32) -> Option<u32>,
    ) -> Vec<usize> {
        let all = spread(engines, devices, 99, distance);
        all.into_iter().flatten().collect()
    }

    #[test]
    fn a_device_gets_no_more_than_it_may() {
        let none = |_: u32, _: u32| None;
        assert_eq!(
            spread(&[None; 5], &[None; 2], 2, none),
            [Some(0), Some(1), Some(0), Some(1), None]
        );
        // The near one is taken; then the far one; then none.
        let devices = [Some(0), Some(1)];
        assert_eq!(
            spread(&[Some(1); 3], &devices, 1, two_sockets),
            [Some(1), Some(0), None]
        );
    }

    #[test]
    fn few_lanes_have_more_blocks() {
        let each = |lanes| blocks_each(lanes, 16);
        assert_eq!(
            [1, 2, 4, 5, 8, 9, 16, 17].map(each),
            [4, 4, 4, 2, 2, 1, 1, 1]
        );
        assert_eq!([1, 2, 3, 7].map(|most| blocks_each(1, most)), [1, 2, 2, 4]);
        assert_eq!(blocks_each(0, 16), 4);
        // Never more in all than may be kept, for as many lanes as `spread` allows.
        for most in 1..40 {
            for lanes in 1..=most {
                assert!(lanes * blocks_each(lanes, most) as usize <= most);
            }
        }
    }

    #[test]
    fn unknown_nodes_take_turns() {
        let none = |_: u32, _: u32| None;
        assert_eq!(dealt(&[None; 5], &[None; 2], none), [0, 1, 0, 1, 0]);
        assert_eq!(
            dealt(&[Some(0); 3], &[Some(0), None], two_sockets),
            [0, 1, 0]
        );
    }

    #[test]
    fn each_engine_gets_the_nearest_device() {
        let engines = [Some(0), Some(0), Some(1), Some(1)];
        assert_eq!(
            dealt(&engines, &[Some(1), Some(0)], two_sockets),
            [1, 1, 0, 0]
        );
        let devices = [Some(0), Some(0), Some(1), Some(1)];
        assert_eq!(dealt(&engines, &devices, two_sockets), [0, 1, 2, 3]);
        // A socket without a device uses the other's.
        assert_eq!(
            dealt(&[Some(1), Some(1)], &[Some(0), Some(0)], two_sockets),
            [0, 1]
        );
    }

    #[test]
    fn nothing_to_spread() {
        assert!(dealt(&[Some(0)], &[], two_sockets).is_empty());
        assert!(dealt(&[], &[Some(0)], two_sockets).is_empty());
    }
}
