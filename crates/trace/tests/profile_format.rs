//! `docs/profile-format.md` says what [`trace::schema`] defines. `UPDATE=1 cargo test -p trainyard-trace --test profile_format`
//! writes its tables anew.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use trace::schema::{Kind, Table};

const BEGIN: &str = "<!-- tables: begin -->\n";
const END: &str = "<!-- tables: end -->\n";

fn tables() -> String {
    let mut text = String::new();
    for table in Table::ALL {
        write!(
            text,
            "\n### `{}`\n\n{}\n\n| column | type | meaning |\n|---|---|---|\n",
            table.folder(),
            table.meaning()
        )
        .unwrap();
        for column in table.columns() {
            let kind = match column.kind {
                Kind::Int => "BIGINT",
                Kind::Float => "DOUBLE",
                Kind::Text => "VARCHAR",
            };
            let null = if column.nullable { ", null" } else { "" };
            writeln!(text, "| `{}` | {kind}{null} | {} |", column.name, column.meaning.replace('|', "\\|")).unwrap();
        }
    }
    text.push('\n');
    text
}

#[test]
fn the_document_names_every_table_and_column_as_it_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/profile-format.md");
    let document = fs::read_to_string(&path).unwrap();
    let begin = document.find(BEGIN).expect("the tables begin with a mark") + BEGIN.len();
    let end = document.find(END).expect("the tables end with a mark");
    let expected = tables();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, format!("{}{expected}{}", &document[..begin], &document[end..])).unwrap();
    } else {
        assert!(document[begin..end] == expected, "docs/profile-format.md is out of date: run this test with UPDATE=1");
    }
}
