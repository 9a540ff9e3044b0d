//! Records the metrics of this program so that a test reads those of its own queue, however many others there are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Once};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// The values of each metric, by its name and the values of its labels.
static RECORDS: Mutex<BTreeMap<(String, String), Arc<Values>>> = Mutex::new(BTreeMap::new());

/// Records from now on what handles record that are created from now on.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| metrics::set_global_recorder(ToRecords).unwrap());
}

/// Returns the last nonzero value of a gauge, the increments of a counter, or each value of a histogram.
pub(crate) fn values_of(metric: &str, labels: String) -> Vec<f64> {
    let records = RECORDS.lock().unwrap();
    let values = records.get(&(metric.to_owned(), labels));
    values.map_or(Vec::new(), |values| values.told.lock().unwrap().clone())
}

/// Returns all values that a gauge was set to.
pub(crate) fn all_values_of(metric: &str, labels: String) -> Vec<f64> {
    let records = RECORDS.lock().unwrap();
    let values = records.get(&(metric.to_owned(), labels));
    values.map_or(Vec::new(), |values| values.set.lock().unwrap().clone())
}

#[derive(Debug, Default)]
struct Values {
    told: Mutex<Vec<f64>>,
    /// All values that a gauge was set to.
    set: Mutex<Vec<f64>>,
}

impl CounterFn for Values {
    fn increment(&self, value: u64) {
        self.told.lock().unwrap().push(value as f64);
    }

    fn absolute(&self, value: u64) {
        self.set(value as f64);
    }
}

impl GaugeFn for Values {
    fn increment(&self, value: f64) {
        let before: f64 = self.told.lock().unwrap().iter().sum();
        self.set(before + value);
    }

    fn decrement(&self, value: f64) {
        GaugeFn::increment(self, -value);
    }

    fn set(&self, value: f64) {
        self.set.lock().unwrap().push(value);
        if value != 0.0 {
            *self.told.lock().unwrap() = vec![value];
        }
    }
}

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.told.lock().unwrap().push(value);
    }
}

struct ToRecords;

impl ToRecords {
    fn values(key: &Key) -> Arc<Values> {
        let labels = key.labels().map(|label| label.value()).collect();
        let mut records = RECORDS.lock().unwrap();
        let values = records.entry((key.name().to_owned(), labels));
        values.or_default().clone()
    }
}

impl Recorder for ToRecords {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Self::values(key).into()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Self::values(key).into()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Self::values(key).into()
    }
}
