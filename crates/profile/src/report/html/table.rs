//! Tables of the page, sortable by a click on a head.

use std::fmt::Write;

use super::escape;
use crate::report::units;

/// A cell: what it shows, and what it sorts by.
pub(super) enum Cell {
    /// A word.
    Text(String),
    /// A name, cut in its middle to so many characters; whole in its title.
    Name(String, usize),
    /// Prose.
    Prose(String),
    /// A number and how it reads.
    Number(f64, String),
    /// A share of 0 to 1, with a bar in a colour of the style sheet.
    Share(f64, &'static str),
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Cell::Text(text.into())
    }

    /// A time in its own unit.
    pub(super) fn time(ns: f64) -> Self {
        Cell::Number(ns, units::time(ns))
    }

    pub(super) fn count(number: u64) -> Self {
        Cell::Number(number as f64, units::count(number))
    }

    /// A share in percent, without a bar.
    pub(super) fn percent(share: f64) -> Self {
        Cell::Number(share, format!("{} %", units::percent(share)))
    }

    /// Nothing, sorted below all numbers.
    pub(super) fn none() -> Self {
        Cell::Number(-1.0, "–".into())
    }
}

/// A table.
pub(super) struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(super) fn new(heads: &[&'static str]) -> Self {
        Self { heads: heads.to_vec(), rows: Vec::new() }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        debug_assert_eq!(N, self.heads.len(), "a cell for each column");
        self.rows.push(cells.into());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn html(&self) -> String {
        let words = |at: usize| match self.rows.first().and_then(|row| row.get(at)) {
            Some(Cell::Number(..)) => "",
            _ => r#" class="t""#,
        };
        let mut html = String::from(r#"<div class="scroll"><table class="sort"><thead><tr>"#);
        for (at, head) in self.heads.iter().enumerate() {
            let _ = write!(html, r#"<th scope="col"{}>{}</th>"#, words(at), escape(head));
        }
        html.push_str("</tr></thead><tbody>");
        for row in &self.rows {
            html.push_str("<tr>");
            row.iter().for_each(|cell| push(&mut html, cell));
            html.push_str("</tr>");
        }
        html.push_str("</tbody></table></div>");
        html
    }
}

fn push(html: &mut String, cell: &Cell) {
    let sortable = |value: f64| if value.is_finite() { value } else { -1.0 };
    let _ = match cell {
        Cell::Text(text) => write!(html, r#"<td class="t">{}</td>"#, escape(text)),
        Cell::Name(name, width) => {
            write!(
                html,
                r#"<td class="t name" title="{}">{}</td>"#,
                escape(name),
                escape(&units::shorten(name, *width))
            )
        }
        Cell::Prose(text) => write!(html, r#"<td class="t wrap">{}</td>"#, escape(text)),
        Cell::Number(value, text) => write!(html, r#"<td data-v="{}">{}</td>"#, sortable(*value), escape(text)),
        Cell::Share(share, colour) => {
            let width = sortable(share * 100.0).clamp(0.0, 100.0);
            let text = units::percent(*share);
            write!(
                html,
                r#"<td data-v="{}" class="t"><span class="meter"><i class="b-{colour}" style="width:{width:.2}%"></i></span> {text} %</td>"#,
                sortable(*share)
            )
        }
    };
}
