//! Lines of JSON with the driver.

use std::io::{BufRead, Write};
use std::time::Instant;

use serde_json::{Map, Value, json};

/// A bench that can do one step after the other.
pub trait Steps {
    /// Does one step and returns the units of work done.
    fn step(&mut self) -> anyhow::Result<usize>;

    /// Further keys of the answer, about all steps since the last call.
    fn details(&mut self) -> Map<String, Value> {
        Map::new()
    }
}

/// Says that it is ready, then does `steps` steps for every line `run` until `quit` or the end of standard input.
pub fn serve(steps: usize, mut bench: impl Steps) -> anyhow::Result<()> {
    bench.details();
    answer(&json!({"ready": true, "name": "trainyard", "version": env!("CARGO_PKG_VERSION")}))?;
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            "run" => {
                let begun = Instant::now();
                let mut units = 0;
                for _ in 0..steps {
                    units += bench.step()?;
                }
                let seconds = begun.elapsed().as_secs_f64();
                let mut reply = bench.details();
                reply.insert("seconds".into(), json!(seconds));
                reply.insert("units".into(), json!(units));
                answer(&Value::Object(reply))?;
            }
            "quit" => break,
            other => anyhow::bail!("the driver said `{other}`; `run` and `quit` are known"),
        }
    }
    Ok(())
}

fn answer(value: &Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}
