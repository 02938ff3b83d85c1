//! Charts as inline SVG. Each has a title for screen readers; every number is in a table beside it too.

use std::f64::consts::TAU;
use std::fmt::Write;

use super::escape;
use crate::report::units;

/// A part of a whole.
pub(super) struct Slice {
    /// What it is.
    pub name: String,
    /// Its size; all parts share one unit.
    pub value: f64,
    /// What to show for it.
    pub text: String,
    /// Its colour, a class of the style sheet.
    pub colour: &'static str,
}

/// Colours of series without a meaning of their own.
pub(super) const COLOURS: [&str; 10] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9"];

fn number(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}") } else { "0".into() }
}

/// A ring of parts with a text in its middle, and their legend.
pub(super) fn ring(title: &str, middle: &str, parts: &[Slice]) -> String {
    let total: f64 = parts.iter().map(|part| part.value.max(0.0)).sum();
    let mut svg = format!(
        r#"<div class="ring"><svg viewBox="0 0 120 120" role="img" aria-label="{}"><circle cx="60" cy="60" r="45" class="rail"/>"#,
        escape(title)
    );
    let (radius, mut at) = (45.0, 0.0);
    let around = TAU * radius;
    for part in parts.iter().filter(|part| part.value > 0.0) {
        let share = part.value / total;
        let _ = write!(
            svg,
            r#"<circle cx="60" cy="60" r="{radius}" class="arc s-{}" stroke-dasharray="{} {}" stroke-dashoffset="{}"><title>{}: {}</title></circle>"#,
            part.colour,
            number(share * around),
            number(around),
            number(-at * around),
            escape(&part.name),
            escape(&part.text),
        );
        at += share;
    }
    let _ = write!(svg, r#"<text x="60" y="65" class="middle">{}</text></svg>{}</div>"#, escape(middle), legend(parts));
    svg
}

/// A part with its time and its share of the whole.
pub(super) fn part(name: impl Into<String>, ns: i64, whole: i64, colour: &'static str) -> Slice {
    let share = if whole > 0 { ns as f64 / whole as f64 } else { 0.0 };
    let text = format!("{} · {} %", units::time(ns as f64), units::percent(share));
    Slice { name: name.into(), value: ns as f64, text, colour }
}

/// What colours mean.
pub(super) fn keys(keys: &[(&str, &str)]) -> String {
    let key = |(name, colour): &(&str, &str)| format!(r#"<li><i class="b-{colour}"></i>{}</li>"#, escape(name));
    format!(r#"<ul class="keys">{}</ul>"#, keys.iter().map(key).collect::<String>())
}

/// Names, colours and values.
pub(super) fn legend(parts: &[Slice]) -> String {
    let mut html = String::from(r#"<ul class="legend">"#);
    for part in parts {
        let _ = write!(
            html,
            r#"<li><i class="b-{}"></i><span title="{}">{}</span><b>{}</b></li>"#,
            part.colour,
            escape(&part.name),
            escape(&part.name),
            escape(&part.text)
        );
    }
    html.push_str("</ul>");
    html
}

/// A bar for each row, cut into parts; all bars share one scale, whose end is `whole`.
pub(super) fn stacks(title: &str, rows: &[(String, Vec<Slice>)], whole: f64) -> String {
    let mut html = format!(r#"<div class="stacks" role="img" aria-label="{}">"#, escape(title));
    for (label, parts) in rows {
        let _ = write!(
            html,
            r#"<div class="stack"><span class="label" title="{0}">{0}</span><span class="bar">"#,
            escape(label)
        );
        for part in parts.iter().filter(|part| part.value > 0.0 && whole > 0.0) {
            let _ = write!(
                html,
                r#"<i class="b-{}" style="width:{}%" title="{}: {}"></i>"#,
                part.colour,
                number(part.value / whole * 100.0),
                escape(&part.name),
                escape(&part.text)
            );
        }
        html.push_str("</span></div>");
    }
    html.push_str("</div>");
    html
}

/// Values over time as a filled line; `most` is the upper end of the scale.
pub(super) fn area(title: &str, values: &[f64], most: f64, from: &str, to: &str, top: &str) -> String {
    const WIDTH: f64 = 600.0;
    const HEIGHT: f64 = 80.0;
    let step = WIDTH / values.len().max(1) as f64;
    let mut line = String::new();
    for (at, value) in values.iter().enumerate() {
        let y = HEIGHT - (value / most.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0) * HEIGHT;
        let _ = write!(
            line,
            "L{} {} L{} {} ",
            number(at as f64 * step),
            number(y),
            number((at + 1) as f64 * step),
            number(y)
        );
    }
    format!(
        r#"<figure class="area"><svg viewBox="0 0 600 80" preserveAspectRatio="none" role="img" aria-label="{title}"><title>{title}</title><path class="grid" d="M0 0.5H600M0 40H600M0 79.5H600"/><path class="fill" d="M0 {HEIGHT} {line}L{WIDTH} {HEIGHT}Z"/></svg><figcaption><span>{from}</span><span>{top}</span><span>{to}</span></figcaption></figure>"#,
        title = escape(title),
        from = escape(from),
        to = escape(to),
        top = escape(top),
    )
}

/// Points of a time from 0 and a value, joined; `most` is the upper end of the scale.
pub(super) fn line(title: &str, points: &[(f64, f64)], most: f64, from: &str, to: &str, top: &str) -> String {
    let span = points.last().map_or(0.0, |point| point.0).max(f64::MIN_POSITIVE);
    let mut path = String::new();
    for (at, (time, value)) in points.iter().enumerate() {
        let y = 79.0 - (value / most.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0) * 78.0;
        let _ = write!(path, "{}{} {}", if at == 0 { "M" } else { "L" }, number(time / span * 600.0), number(y));
    }
    format!(
        r#"<figure class="area"><svg viewBox="0 0 600 80" preserveAspectRatio="none" role="img" aria-label="{title}"><title>{title}</title><path class="grid" d="M0 0.5H600M0 40H600M0 79.5H600"/><path class="line" d="{path}"/></svg><figcaption><span>{from}</span><span>{top}</span><span>{to}</span></figcaption></figure>"#,
        title = escape(title),
        from = escape(from),
        to = escape(to),
        top = escape(top),
    )
}

/// A bar of a histogram or of a sequence: its height, and what it is.
pub(super) struct Column {
    /// Height.
    pub value: f64,
    /// What it is.
    pub title: String,
    /// Of the height, what is drawn in the second colour from the bottom; 0 for none.
    pub inner: f64,
}

/// Upright bars in two colours, of the whole and of what is inner; and what stands at both ends of the axis.
pub(super) fn columns(title: &str, columns: &[Column], colours: [&str; 2], from: &str, to: &str, top: &str) -> String {
    const WIDTH: f64 = 600.0;
    const HEIGHT: f64 = 120.0;
    let most = columns.iter().map(|column| column.value).fold(f64::MIN_POSITIVE, f64::max);
    let step = WIDTH / columns.len().max(1) as f64;
    let mut bars = String::new();
    for (at, column) in columns.iter().enumerate() {
        let high = |value: f64| (value / most).clamp(0.0, 1.0) * (HEIGHT - 2.0);
        let (x, width) = (at as f64 * step + step * 0.06, step * 0.88);
        // One of many is seen.
        let height = if column.value > 0.0 { high(column.value).max(1.5) } else { 0.0 };
        let _ = write!(bars, r#"<g><title>{}</title>"#, escape(&column.title));
        for (colour, height) in [(colours[0], height), (colours[1], high(column.inner.min(column.value)))] {
            if height > 0.0 {
                let _ = write!(
                    bars,
                    r#"<rect class="f-{colour}" x="{}" y="{}" width="{}" height="{}"/>"#,
                    number(x),
                    number(HEIGHT - height),
                    number(width),
                    number(height)
                );
            }
        }
        bars.push_str("</g>");
    }
    format!(
        r#"<figure class="area"><svg class="tall" viewBox="0 0 600 120" preserveAspectRatio="none" role="img" aria-label="{title}"><title>{title}</title><path class="grid" d="M0 0.5H600M0 60H600M0 119.5H600"/>{bars}</svg><figcaption><span>{from}</span><span>{top}</span><span>{to}</span></figcaption></figure>"#,
        title = escape(title),
        from = escape(from),
        to = escape(to),
        top = escape(top),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(values: &[f64]) -> Vec<Slice> {
        let part = |(at, value): (usize, &f64)| Slice {
            name: format!("<script>{at}"),
            value: *value,
            text: "x".into(),
            colour: COLOURS[at % COLOURS.len()],
        };
        values.iter().enumerate().map(part).collect()
    }

    #[test]
    fn no_chart_prints_what_is_no_number_or_lets_a_name_out() {
        for values in [&[][..], &[0.0, 0.0], &[f64::NAN, 1.0], &[1e300, 1e-300, f64::INFINITY]] {
            let columns: Vec<Column> =
                values.iter().map(|value| Column { value: *value, title: "<b>".into(), inner: *value }).collect();
            let all = [
                ring("<i>", "&", &parts(values)),
                stacks("t", &[("a\"b".into(), parts(values))], 0.0),
                stacks("t", &[("a\"b".into(), parts(values))], values.iter().sum()),
                area("<t>", values, 0.0, "0", "1", "2"),
                line("<t>", &values.iter().map(|value| (*value, *value)).collect::<Vec<_>>(), 0.0, "0", "1", "2"),
                super::columns("<t>", &columns, ["c0", "c1"], "0", "1", "2"),
            ];
            for svg in all {
                assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<script"), "{svg}");
                assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
            }
        }
    }
}
