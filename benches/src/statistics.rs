//! Medians and percentiles.

/// Returns the middle figure, of an even number of them the larger one of the two in the middle.
///
/// # Panics
/// If there are none.
#[must_use]
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<_> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Returns the figure that `percent` of all figures are smaller than, of figures in ascending
/// order; `None` if there are none.
#[must_use]
pub fn percentile(ascending: &[u32], percent: usize) -> Option<u32> {
    ascending.get(ascending.len() * percent / 100).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), 3.0);
    }

    #[test]
    fn a_percentile_has_so_many_figures_before_it() {
        let figures: Vec<_> = (0..200).collect();
        assert_eq!(percentile(&figures, 50), Some(100));
        assert_eq!(percentile(&figures, 99), Some(198));
        assert_eq!(percentile(&[7], 99), Some(7));
        assert_eq!(percentile(&[], 50), None);
    }
}
