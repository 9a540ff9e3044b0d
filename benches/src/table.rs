//! Tables in Markdown.

use std::fmt;

/// A table: a line of titles, and lines of cells.
#[derive(Debug, Clone)]
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// Returns a table with these titles and no lines yet.
    pub fn new<S: Into<String>>(titles: impl IntoIterator<Item = S>) -> Self {
        let titles: Vec<_> = titles.into_iter().map(Into::into).collect();
        let rule = vec!["---".to_owned(); titles.len()];
        Self(vec![titles, rule])
    }

    /// Adds a line.
    pub fn push<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.0.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, cells) in self.0.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            write!(f, "| {} |", cells.join(" | "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_titles_a_rule_and_lines() {
        let mut table = Table::new(["key", "count"]);
        table.push(["fish".to_owned(), 3.to_string()]);
        let expected = "| key | count |\n| --- | --- |\n| fish | 3 |";
        assert_eq!(table.to_string(), expected);
    }
}
