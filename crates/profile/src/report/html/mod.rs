//! The dashboard as one self-contained page: no network, no fonts, charts as inline SVG, every number in a table too.

mod counters;
mod events;
mod kernels;
mod steps;
mod svg;
mod table;
#[cfg(test)]
mod tests;
mod time;

use std::fmt::Write;

use super::Report;
use super::units;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// How wide a panel is.
#[derive(Clone, Copy)]
enum Width {
    Whole,
    Half,
    Third,
}

/// A part of the page.
struct Panel {
    /// What links name it.
    id: &'static str,
    title: &'static str,
    /// What is measured, in one sentence.
    note: String,
    width: Width,
    body: String,
}

/// The page of a report.
pub fn page(report: &Report) -> String {
    let mut panels = vec![findings(report)];
    panels.extend(time::panels(report));
    panels.extend(counters::panel(report));
    panels.extend(events::panels(report));
    let name = escape(&units::printable(&report.profile.name));
    let mut html = format!(
        r#"<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{name}: where the time went</title><style>{STYLE}</style></head><body><header><h1>{name}</h1>{}<nav aria-label="Panels">"#,
        about(report)
    );
    for panel in &panels {
        let _ = write!(html, r##"<a href="#{}">{}</a>"##, panel.id, escape(panel.title));
    }
    let _ = write!(html, r#"</nav></header><main>{}<div class="grid2">"#, time::tiles(report));
    for panel in &panels {
        let class = match panel.width {
            Width::Whole => "whole",
            Width::Half => "half",
            Width::Third => "third",
        };
        let _ = write!(
            html,
            r#"<section id="{}" class="{class}"><h2>{}</h2><p class="note">{}</p>{}</section>"#,
            panel.id,
            escape(panel.title),
            escape(&panel.note),
            panel.body
        );
    }
    let _ = write!(
        html,
        "</div></main><footer>{} · <code>trainyard profile report --html</code></footer><script>{SCRIPT}</script></body></html>",
        escape(&report.profile.writer)
    );
    html
}

fn about(report: &Report) -> String {
    let about = &report.profile;
    let mut parts = vec![
        counted(about.ranks.len() as u64, "rank"),
        counted(about.devices, "device"),
        about.span_ns.map_or("no slices".into(), |span| format!("{} span", units::time(span as f64))),
        format!("{} device slices", units::count(about.device_slices)),
        format!("{} host slices", units::count(about.host_slices)),
        units::bytes(about.bytes as f64),
        format!("made {} UTC", about.created.replace('T', " ").chars().take(16).collect::<String>()),
        about.state.to_owned(),
    ];
    if let [only] = report.analyses.ranks.as_slice()
        && about.ranks.len() > 1
    {
        parts.push(format!("rank {} only", only.rank));
    }
    if report.analyses.options.hta_compat {
        parts.push("with HTA 0.5.0's filter, rounding and classes".into());
    }
    format!(r#"<p class="about">{}</p>"#, escape(&parts.join(" · ")))
}

fn findings(report: &Report) -> Panel {
    let mut body = String::new();
    if report.findings.is_empty() {
        body.push_str("<p>Nothing stands out: no rule found time worth a sentence.</p>");
    } else {
        body.push_str(r#"<ol class="findings">"#);
        for finding in &report.findings {
            let _ = write!(body, "<li>{}", escape(&units::printable(&finding.text)));
            let panel = time::panel_of(finding.rule);
            let _ = write!(body, r##"<small><a href="#{panel}">numbers</a>"##);
            if let Some(link) = &finding.link {
                let _ = write!(body, " · timeline: <code>{}</code>", escape(&report.command(link)));
            }
            body.push_str("</small></li>");
        }
        body.push_str("</ol>");
    }
    let note = "Time that need not be taken, most first.".into();
    Panel { id: "findings", title: "Findings", note, width: Width::Whole, body }
}

/// `1 rank`, `8 ranks`.
fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", units::count(number), if number == 1 { "" } else { "s" })
}

/// Text that no browser takes for markup, in elements and in quoted attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() && c != '\n' && c != '\t' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
