//! Maps of applications' own data.

use console::report::{MapIndex, Maps};

use super::{Show, next_page, table};

impl Show for Maps {
    fn show(&self) -> String {
        if self.maps.is_empty() {
            return "no maps\n".to_owned();
        }
        let rows = self.maps.iter().map(|map| {
            let more = if map.has_more { "+" } else { "" };
            let indexes: Vec<_> = map.indexes.iter().map(MapIndex::text).collect();
            vec![
                map.name.clone(),
                map.codec.clone(),
                format!("{}{more}", map.rows),
                map.problem.clone().unwrap_or_else(|| indexes.join("; ")),
            ]
        });
        let mut shown = table(&["MAP", "CODEC", "ROWS", "INDEXES"], rows);
        next_page(&mut shown, self.next.as_deref());
        shown
    }
}
