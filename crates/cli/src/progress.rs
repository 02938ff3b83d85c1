//! A run as a person watches it: a bar on a terminal, a line every few seconds elsewhere; all on standard error.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use train::metrics::Metric;
use train::{Event, Observer, StepRecord};

const LINE_EVERY: Duration = Duration::from_secs(5);
const BAR_UNITS: u64 = 1000;
/// Weight of the newest update in the shown loss and speed.
const SMOOTHING: f64 = 0.1;

pub struct Progress {
    bar: Option<ProgressBar>,
    last_line: Instant,
    loss: Option<f64>,
    samples_per_s: Option<f64>,
}

impl Progress {
    pub fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(BAR_UNITS);
            let template = "{elapsed_precise} [{bar:32}] {percent:>3} %  {msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        Self { bar, last_line: Instant::now(), loss: None, samples_per_s: None }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    fn step(&mut self, record: &StepRecord) {
        let smooth = |old: Option<f64>, new: f64| Some(old.map_or(new, |old| old + SMOOTHING * (new - old)));
        self.loss = smooth(self.loss, record.loss);
        self.samples_per_s = smooth(self.samples_per_s, record.samples as f64 / record.seconds.max(1e-9));
        let text = format!(
            "step {}  epoch {:.2}  loss {:.4}  lr {:.2e}  {:.0} samples/s",
            record.step,
            record.epoch,
            self.loss.unwrap_or_default(),
            record.lr,
            self.samples_per_s.unwrap_or_default(),
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position((record.progress * BAR_UNITS as f64) as u64);
                bar.set_message(text);
            }
            None if self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                eprintln!("{:>3.0} %  {text}", record.progress * 100.0);
            }
            None => {}
        }
    }
}

impl Observer for Progress {
    fn observe(&mut self, event: Event) {
        match event {
            Event::Step(record) => self.step(record),
            Event::Notice(text) => self.say(&format!("note: {text}")),
            Event::Started { device, parameters, train, validation, total_steps, resumed_at } => {
                let (all, trained) = parameters;
                self.say(&format!(
                    "{device}; {:.1} M parameters, {:.1} M trained",
                    all as f64 / 1e6,
                    trained as f64 / 1e6
                ));
                let held_out = validation.map_or(String::new(), |v| format!(", {} held out", v.examples));
                self.say(&format!("{} training examples{held_out}; at most {total_steps} updates", train.examples));
                if let Some(step) = resumed_at {
                    self.say(&format!("going on after update {step}"));
                }
            }
            Event::Evaluated { step, report, metric, best } => {
                let shown = [Metric::Loss, Metric::Accuracy, Metric::MacroF1, Metric::MacroRecall, Metric::Mse];
                let others = shown.into_iter().filter(|&other| other != metric);
                let values = [metric].into_iter().chain(others);
                let values = values.filter_map(|m| Some(format!("{} {:.4}", m.name(), report.value(m)?)));
                let mark = if best { "  (best so far)" } else { "" };
                self.say(&format!("after update {step}: {}{mark}", values.collect::<Vec<_>>().join("  ")));
            }
            Event::Saved(path) => self.say(&format!("saved {}", path.display())),
            Event::StoppedEarly(reason) => self.say(&format!("stopping early: {reason}")),
        }
    }
}
