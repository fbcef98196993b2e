//! Lines for people as they come, and all of them for machines at the end.

use parity_kernels::cuda::DeviceInfo;

/// Gathers figures.
pub struct Report {
    lines: Vec<(String, f64, &'static str)>,
    facts: Vec<(&'static str, String)>,
}

fn sysfs(path: String) -> String {
    std::fs::read_to_string(path).map_or("unknown".into(), |text| text.trim().to_string())
}

impl Report {
    pub fn new(device: &DeviceInfo, driver: i32) -> Report {
        let pci = |file: &str| {
            sysfs(format!(
                "/sys/bus/pci/devices/{}/{file}",
                device.pci_address
            ))
        };
        let cpu = sysfs("/proc/cpuinfo".into());
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
        let facts = vec![
            (
                "card",
                format!(
                    "{}, {} multiprocessors",
                    device.name, device.multiprocessors
                ),
            ),
            (
                "driver",
                format!("CUDA {}.{}", driver / 1000, driver % 1000 / 10),
            ),
            (
                "link",
                format!(
                    "{} x{}",
                    pci("current_link_speed"),
                    pci("current_link_width")
                ),
            ),
            (
                "cpu",
                model.map_or("unknown".into(), |m| {
                    m.trim_matches([' ', '\t', ':']).into()
                }),
            ),
            ("kernel", sysfs("/proc/sys/kernel/osrelease".into())),
            ("simd", parity_kernels::Engine::detect().name().into()),
        ];
        for (name, value) in &facts {
            println!("{name:8} {value}");
        }
        Report {
            lines: Vec::new(),
            facts,
        }
    }

    pub fn heading(&self, text: &str) {
        println!("\n{text}");
    }

    /// A figure.
    pub fn line(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        let name = name.into();
        println!("  {name:64} {value:10.3} {unit}");
        self.lines.push((name, value, unit));
    }

    /// A figure that has to be at least, or at most, so much.
    pub fn goal(
        &mut self,
        name: impl Into<String>,
        value: f64,
        least: Option<f64>,
        most: Option<f64>,
    ) {
        let met = least.is_none_or(|l| value >= l) && most.is_none_or(|m| value <= m);
        let bound = match (least, most) {
            (Some(l), _) => format!("goal >= {l}"),
            (_, Some(m)) => format!("goal <= {m}"),
            _ => String::new(),
        };
        let name = format!(
            "{} [{bound}: {}]",
            name.into(),
            if met { "met" } else { "MISSED" }
        );
        self.line(name, value, "ratio");
    }

    /// Everything as JSON. Names hold no character that JSON would want escaped but the quotation mark.
    pub fn json(&self) -> String {
        let text = |s: &str| format!("\"{}\"", s.replace('\\', "/").replace('"', "'"));
        let facts: Vec<String> = self
            .facts
            .iter()
            .map(|(name, value)| format!("  {}: {}", text(name), text(value)))
            .collect();
        let lines: Vec<String> = self
            .lines
            .iter()
            .map(|(name, value, unit)| {
                format!(
                    "    {{\"name\": {}, \"value\": {value:.6}, \"unit\": {}}}",
                    text(name),
                    text(unit)
                )
            })
            .collect();
        format!(
            "{{\n{},\n  \"figures\": [\n{}\n  ]\n}}\n",
            facts.join(",\n"),
            lines.join(",\n")
        )
    }
}
