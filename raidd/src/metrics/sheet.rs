//! Figures by name, put together as they come up and written out as one text. Nothing else knows the library that writes it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{CounterVec, Encoder, GaugeVec, Opts, Registry, TextEncoder};

/// What went wrong in making the text; a fault in this program.
#[derive(Debug, thiserror::Error)]
#[error("metrics: {0}")]
pub struct MetricsError(#[from] prometheus::Error);

/// Figures, registered as they first come up. Label names of a figure are the same each time. Values are floating point, as
/// in Prometheus itself.
#[derive(Default)]
pub(super) struct Sheet {
    registry: Registry,
    counters: BTreeMap<String, CounterVec>,
    gauges: BTreeMap<String, GaugeVec>,
}

/// Names and values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

impl Sheet {
    /// What only grows, and is added to what is there already.
    pub fn count(
        &mut self,
        name: &str,
        help: &str,
        labels: Labels,
        value: f64,
    ) -> Result<(), MetricsError> {
        let (registry, known) = (&self.registry, &mut self.counters);
        figure(registry, known, CounterVec::new, (name, help), labels)?.inc_by(value);
        Ok(())
    }

    /// What goes up and down.
    pub fn gauge(
        &mut self,
        name: &str,
        help: &str,
        labels: Labels,
        value: f64,
    ) -> Result<(), MetricsError> {
        let (registry, known) = (&self.registry, &mut self.gauges);
        figure(registry, known, GaugeVec::new, (name, help), labels)?.set(value);
        Ok(())
    }

    /// Everything, in the exposition format.
    pub fn text(&self) -> Result<String, MetricsError> {
        let mut bytes = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The figure of that name and these labels; its family is made and registered if this is the first time.
fn figure<B: MetricVecBuilder + 'static>(
    registry: &Registry,
    families: &mut BTreeMap<String, MetricVec<B>>,
    make: impl FnOnce(Opts, &[&str]) -> prometheus::Result<MetricVec<B>>,
    (name, help): (&str, &str),
    labels: Labels,
) -> Result<B::M, MetricsError> {
    let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
    let family = match families.entry(name.to_string()) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            let family = make(Opts::new(name, help), &names)?;
            registry.register(Box::new(family.clone()))?;
            entry.insert(family)
        }
    };
    Ok(family.get_metric_with_label_values(&values)?)
}
