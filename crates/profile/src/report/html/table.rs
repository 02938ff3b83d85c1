//! Tables of the page, sortable by a click on a head.

use std::fmt::Write;

use super::escape;
use crate::report::units;

/// A cell: what it shows, and what it sorts by.
pub(super) enum Cell {
    /// A word.
    Text(String),
    /// A name, cut to so many characters so that it differs from the others of its column; whole in its title.
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

    /// Without the column of this head.
    pub(super) fn without(mut self, head: &str) -> Self {
        if let Some(at) = self.heads.iter().position(|other| *other == head) {
            self.heads.remove(at);
            self.rows.iter_mut().for_each(|row| _ = row.remove(at));
        }
        self
    }

    /// The names of a column, as they are shown.
    fn short_names(&self, at: usize) -> Vec<String> {
        let names = self.rows.iter().filter_map(|row| match &row[at] {
            Cell::Name(name, width) => Some((name.as_str(), *width)),
            _ => None,
        });
        let (names, widths): (Vec<&str>, Vec<usize>) = names.unzip();
        units::shorten_all(&names, widths.iter().copied().max().unwrap_or(0))
    }

    pub(super) fn html(&self) -> String {
        let mut names: Vec<_> = (0..self.heads.len()).map(|at| self.short_names(at).into_iter()).collect();
        let words = |at: usize| match self.rows.first().and_then(|row| row.get(at)) {
            Some(Cell::Number(..)) => "",
            Some(Cell::Name(..)) => r#" class="t name""#,
            _ => r#" class="t""#,
        };
        let mut html = String::from(r#"<div class="scroll"><table class="sort"><thead><tr>"#);
        for (at, head) in self.heads.iter().enumerate() {
            let _ = write!(html, r#"<th scope="col"{}>{}</th>"#, words(at), escape(head));
        }
        html.push_str("</tr></thead><tbody>");
        for row in &self.rows {
            html.push_str("<tr>");
            for (cell, names) in row.iter().zip(&mut names) {
                match cell {
                    Cell::Name(name, _) => push_name(&mut html, name, &names.next().unwrap_or_default()),
                    cell => push(&mut html, cell),
                }
            }
            html.push_str("</tr>");
        }
        html.push_str("</tbody></table></div>");
        html
    }
}

fn push_name(html: &mut String, name: &str, short: &str) {
    let _ = write!(html, r#"<td class="t name" title="{}">{}</td>"#, escape(name), escape(short));
}

fn push(html: &mut String, cell: &Cell) {
    let sortable = |value: f64| if value.is_finite() { value } else { -1.0 };
    let _ = match cell {
        Cell::Text(text) => write!(html, r#"<td class="t">{}</td>"#, escape(text)),
        Cell::Name(name, width) => return push_name(html, name, &units::shorten(name, *width)),
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
