//! Tables on a terminal: aligned, as wide as the terminal, names cut in their middle.

use std::io::{self, IsTerminal, Write};

use profile::report::units::{printable, shorten_all};

/// What a file or a pipe gets.
const DEFAULT_WIDTH: usize = 120;
const NARROWEST: usize = 60;
const WIDEST: usize = 200;
/// A name is not cut below this, and before columns are left out not below that.
const NAME_WIDTH: usize = 16;
const GOOD_NAME_WIDTH: usize = 28;
const GAP: &str = "  ";

/// Where text goes, and how wide it may be.
pub struct Page<W> {
    out: W,
    pub width: usize,
    bold: bool,
}

impl Page<io::StdoutLock<'static>> {
    pub fn stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        let stated = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let width = stated.or_else(|| terminal.then(terminal_width).flatten()).unwrap_or(DEFAULT_WIDTH);
        let width = width.clamp(NARROWEST, WIDEST);
        Self { out: io::stdout().lock(), width, bold: terminal && std::env::var_os("NO_COLOR").is_none() }
    }
}

impl<W: Write> Page<W> {
    #[cfg(test)]
    pub fn new(out: W, width: usize) -> Self {
        Self { out, width, bold: false }
    }

    /// A heading with what it speaks of.
    pub fn heading(&mut self, title: &str, about: &str) -> io::Result<()> {
        let shown = if self.bold { format!("\x1b[1m{title}\x1b[0m") } else { title.to_owned() };
        if title.chars().count() + GAP.len() + about.chars().count() <= self.width {
            return writeln!(self.out, "\n{}", format!("{shown}{GAP}{about}").trim_end());
        }
        writeln!(self.out, "\n{shown}")?;
        self.paragraph(GAP, about)
    }

    pub fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{}", text.trim_end())
    }

    /// Text broken at spaces; further lines stand under the first one's text.
    pub fn paragraph(&mut self, mark: &str, text: &str) -> io::Result<()> {
        let indent = mark.chars().count();
        let room = self.width.saturating_sub(indent).max(20);
        let mut line = String::new();
        let mut first = true;
        for word in text.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
                self.paragraph_line(mark, indent, first, &line)?;
                (first, line) = (false, String::new());
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.paragraph_line(mark, indent, first, &line)
    }

    fn paragraph_line(&mut self, mark: &str, indent: usize, first: bool, line: &str) -> io::Result<()> {
        if first { writeln!(self.out, "{mark}{line}") } else { writeln!(self.out, "{:indent$}{line}", "") }
    }

    pub fn table(&mut self, table: &Table) -> io::Result<()> {
        table.print(&mut self.out, self.width)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Columns of the terminal.
fn terminal_width() -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one `winsize` to the address that it gets, which is that of a live one.
    let answered = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) } == 0;
    (answered && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// A column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Align {
    /// Names, cut where there is no room.
    Name,
    /// Short words.
    Left,
    /// Numbers.
    Right,
}

/// A table of text cells. Its heads say what they hold: `name*` can be cut, `<word` stands left, all others are numbers; `number?`
/// is left out where there is no room.
pub struct Table {
    heads: Vec<Head>,
    rows: Vec<Vec<String>>,
}

struct Head {
    text: String,
    align: Align,
    optional: bool,
}

impl Head {
    fn of(text: &str) -> Self {
        let optional = text.ends_with('?');
        let text = text.trim_end_matches('?');
        let align = match text {
            text if text.ends_with('*') => Align::Name,
            text if text.starts_with('<') => Align::Left,
            _ => Align::Right,
        };
        Head { text: text.trim_start_matches('<').trim_end_matches('*').to_owned(), align, optional }
    }
}

impl Table {
    pub fn new<S: AsRef<str>>(heads: impl IntoIterator<Item = S>) -> Self {
        Self { heads: heads.into_iter().map(|head| Head::of(head.as_ref())).collect(), rows: Vec::new() }
    }

    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let row: Vec<String> = cells.into_iter().map(|cell| printable(&cell.into())).collect();
        debug_assert_eq!(row.len(), self.heads.len(), "a cell for each column");
        self.rows.push(row);
    }

    /// Without the column of this head.
    pub fn without(mut self, head: &str) -> Self {
        if let Some(at) = self.heads.iter().position(|other| other.text == head) {
            self.heads.remove(at);
            self.rows.iter_mut().for_each(|row| _ = row.remove(at));
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Removes columns that say the same nothing in each row.
    pub fn without_empty_columns(mut self) -> Self {
        for at in (0..self.heads.len()).rev() {
            if !self.rows.is_empty() && self.rows.iter().all(|row| matches!(row[at].as_str(), "" | "–")) {
                self.heads.remove(at);
                self.rows.iter_mut().for_each(|row| _ = row.remove(at));
            }
        }
        self
    }

    fn print(&self, out: &mut impl Write, width: usize) -> io::Result<()> {
        let (shown, widths) = self.fit(width);
        // Each column from its head down, names cut so that different ones stay so.
        let column = |(&at, &width): (&usize, &usize)| {
            let cells: Vec<&str> = self.rows.iter().map(|row| row[at].as_str()).collect();
            let head = std::iter::once(self.heads[at].text.clone());
            match self.heads[at].align {
                Align::Name => head.chain(shorten_all(&cells, width)).collect::<Vec<_>>(),
                _ => head.chain(cells.into_iter().map(str::to_owned)).collect(),
            }
        };
        let columns: Vec<Vec<String>> = shown.iter().zip(&widths).map(column).collect();
        for row in 0..=self.rows.len() {
            let mut line = String::new();
            for ((at, width), column) in shown.iter().zip(&widths).zip(&columns) {
                line.push_str(GAP);
                match self.heads[*at].align {
                    Align::Right => line.push_str(&format!("{:>width$}", column[row])),
                    _ => line.push_str(&format!("{:<width$}", column[row])),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// The columns to show, and their widths.
    fn fit(&self, width: usize) -> (Vec<usize>, Vec<usize>) {
        let length = |text: &String| text.chars().count();
        let natural = |at: usize| {
            self.rows.iter().map(|row| length(&row[at])).max().unwrap_or(0).max(length(&self.heads[at].text))
        };
        let natural: Vec<usize> = (0..self.heads.len()).map(natural).collect();
        let total = |widths: &[usize]| widths.iter().map(|width| width + GAP.len()).sum::<usize>();
        let is_name = |at: usize| self.heads[at].align == Align::Name;

        let mut shown: Vec<usize> = (0..self.heads.len()).collect();
        let good = |shown: &[usize]| {
            let width = |&at: &usize| if is_name(at) { natural[at].min(GOOD_NAME_WIDTH) } else { natural[at] };
            total(&shown.iter().map(width).collect::<Vec<_>>())
        };
        while good(&shown) > width {
            let Some(last) = shown.iter().rposition(|&at| self.heads[at].optional) else { break };
            shown.remove(last);
        }
        // The widest name gives way first.
        let mut widths: Vec<usize> = shown.iter().map(|&at| natural[at]).collect();
        while total(&widths) > width {
            let names = (0..shown.len()).filter(|&place| is_name(shown[place]) && widths[place] > NAME_WIDTH);
            let Some(widest) = names.max_by_key(|&place| widths[place]) else { break };
            widths[widest] -= 1;
        }
        (shown, widths)
    }
}

#[cfg(test)]
mod tests {
    use profile::report::units::shorten;

    use super::*;

    fn printed(table: &Table, width: usize) -> Vec<String> {
        let mut out = Vec::new();
        Page::new(&mut out, width).table(table).unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn numbers_stand_right_and_names_give_way() {
        let mut table = Table::new(["kernel*", "<class", "sum ms", "–"]);
        table.row([
            "void cutlass::gemm<very, long, template, arguments, of, a, kernel>(Params)",
            "compute",
            "1,234.5",
            "",
        ]);
        table.row(["memset\u{1b}[31m", "memory", "0.1", ""]);
        let table = table.without_empty_columns();
        let lines = printed(&table, 60);
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.chars().count() <= 60), "{lines:?}");
        assert!(lines[1].contains("void cutlass::gemm<") && lines[1].contains('…') && lines[1].ends_with("1,234.5"));
        assert!(lines[2].contains("memset\u{fffd}[31m") && lines[2].ends_with("    0.1"));
        assert!(printed(&table, 200)[1].contains("arguments, of, a, kernel"));
    }

    #[test]
    fn columns_that_may_be_left_out_are_before_names_are_cut() {
        let mut table = Table::new(["name*", "sum", "p90?", "max?"]);
        table.row(["n".repeat(40), "1".into(), "2".repeat(12), "3".repeat(12)]);
        assert!(printed(&table, 100)[0].ends_with("max"));
        assert!(printed(&table, 60)[0].ends_with("p90"));
        assert_eq!(printed(&table, 42)[1], format!("  {}    1", shorten(&"n".repeat(40), 35)));
    }

    #[test]
    fn a_paragraph_hangs_under_its_mark() {
        let mut out = Vec::new();
        Page::new(&mut out, 30).paragraph(" 1. ", "one two three four five six seven eight").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), " 1. one two three four five\n    six seven eight\n");
    }
}
