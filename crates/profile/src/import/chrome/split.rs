//! Cuts a trace into its events without parsing them.
//!
//! The splitter sees the bytes in pieces of any size. It follows strings and braces only as far as it must to find where an
//! object ends; whether the object is JSON is for the parser to say. Damage stays local: a line break ends a string, since
//! no JSON string holds one, and an object that grows beyond [`MAX_EVENT`] is given up where it stands.

use memchr::{memchr3, memchr3_iter};

/// The largest event, and the largest value beside `traceEvents`, bytes.
pub(super) const MAX_EVENT: usize = 4 << 20;
/// Bytes without any event or key after which a file is no trace.
pub(super) const MAX_SILENCE: usize = 64 << 20;

/// What the splitter found; ranges are of the buffer it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// An event: `{ … }`.
    Event { start: usize, end: usize },
    /// An event that never ended; what there is of it.
    Oversized { start: usize, end: usize },
    /// A key beside `traceEvents`, without its quotes, and its value.
    Entry { key: (usize, usize), value: (usize, usize) },
    /// A value beside `traceEvents` that is too large to be kept; what there was of it.
    Skipped { start: usize, end: usize },
    /// Bytes between events that are none. Empty where something other than expected begins: events behind a stray bracket,
    /// anything behind the end.
    Garbage { start: usize, end: usize },
}

/// Where the splitter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before the root.
    Root,
    /// In the root object, before a key.
    Key,
    /// In a key's string, which starts here.
    InKey { start: usize },
    /// After a key, before its colon or value.
    AfterKey { key: (usize, usize), colon: bool },
    /// In a value beside `traceEvents`.
    InValue { key: (usize, usize), start: usize, depth: u32, string: bool },
    /// In a value that is too large to be kept.
    SkipValue { depth: u32, string: bool },
    /// Between events.
    Between,
    /// In an event that starts here.
    InEvent { start: usize, depth: u32, string: bool },
    /// In bytes between events that start no event, within so many brackets.
    InGarbage { start: usize, depth: u32 },
    /// After the root's end; whether anything behind it was told.
    End { told: bool },
}

/// The cutting state between two pieces of input.
#[derive(Debug)]
pub(super) struct Splitter {
    at: At,
    /// The next byte to look at.
    position: usize,
    /// Whether the root is a list.
    list: bool,
    /// Whether a list of events was found.
    events: bool,
    /// Bytes since something was found.
    silence: usize,
}

/// What stands at the beginning is no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoTrace;

impl Splitter {
    pub fn new() -> Self {
        Self { at: At::Root, position: 0, list: false, events: false, silence: 0 }
    }

    /// Whether the trace was closed.
    pub fn is_closed(&self) -> bool {
        matches!(self.at, At::End { .. } | At::Root)
    }

    /// Whether a list of events was found: without one, this is no trace.
    pub fn has_events(&self) -> bool {
        self.events
    }

    /// Where what is being read begins; bytes before it are not needed any more.
    pub fn kept_from(&self) -> usize {
        match self.at {
            At::InKey { start } | At::InEvent { start, .. } | At::InGarbage { start, .. } => start,
            At::AfterKey { key, .. } | At::InValue { key, .. } => key.0,
            _ => self.position,
        }
    }

    /// Whether an event stands open.
    pub fn open_event(&self) -> Option<usize> {
        match self.at {
            At::InEvent { start, .. } => Some(start),
            _ => None,
        }
    }

    /// The first `bytes` of the buffer were dropped; positions move.
    pub fn dropped(&mut self, bytes: usize) {
        self.position -= bytes;
        match &mut self.at {
            At::InKey { start } | At::InEvent { start, .. } | At::InGarbage { start, .. } => *start -= bytes,
            At::AfterKey { key, .. } => *key = (key.0 - bytes, key.1 - bytes),
            At::InValue { key, start, .. } => {
                *key = (key.0 - bytes, key.1 - bytes);
                *start -= bytes;
            }
            _ => {}
        }
    }

    /// The next piece of `buffer`, which holds everything from [`Splitter::kept_from`] on; none when more bytes are needed.
    pub fn next(&mut self, buffer: &[u8]) -> Result<Option<Piece>, NoTrace> {
        loop {
            match self.at {
                At::Root => {
                    while let Some(&byte) = buffer.get(self.position) {
                        match byte {
                            b' ' | b'\t' | b'\n' | b'\r' | 0xef | 0xbb | 0xbf => self.position += 1,
                            b'{' => self.at = At::Key,
                            b'[' => (self.at, self.list, self.events) = (At::Between, true, true),
                            _ => return Err(NoTrace),
                        }
                        if self.at != At::Root {
                            self.position += 1;
                            break;
                        }
                        self.quiet(1)?;
                    }
                    if self.at == At::Root {
                        return Ok(None);
                    }
                }
                At::Key => {
                    let Some(&byte) = buffer.get(self.position) else { return Ok(None) };
                    self.position += 1;
                    match byte {
                        b'"' => self.at = At::InKey { start: self.position },
                        b'}' => self.at = At::End { told: false },
                        // A stray bracket had ended the list: more events follow.
                        b'{' if self.events => {
                            self.position -= 1;
                            self.at = At::Between;
                            return Ok(Some(Piece::Garbage { start: self.position, end: self.position }));
                        }
                        _ => self.quiet(1)?,
                    }
                }
                At::InKey { start } => {
                    let Some(found) = memchr3(b'"', b'\\', b'\n', &buffer[self.position..]) else {
                        self.quiet(buffer.len() - self.position)?;
                        self.position = buffer.len();
                        return if self.position - start > MAX_EVENT { Err(NoTrace) } else { Ok(None) };
                    };
                    let found = self.position + found;
                    if buffer[found] == b'\\' {
                        if found + 1 >= buffer.len() {
                            self.position = found;
                            return Ok(None);
                        }
                        self.position = found + 2;
                    } else {
                        self.position = found + 1;
                        self.at = At::AfterKey { key: (start, found), colon: false };
                    }
                }
                At::AfterKey { key, colon } => {
                    let Some(&byte) = buffer.get(self.position) else { return Ok(None) };
                    match byte {
                        b':' => self.at = At::AfterKey { key, colon: true },
                        b'[' if colon && &buffer[key.0..key.1] == b"traceEvents" => {
                            self.silence = 0;
                            self.events = true;
                            self.at = At::Between;
                        }
                        byte if byte.is_ascii_whitespace() => self.quiet(1)?,
                        // A key without a value: the next key, or the end.
                        b',' => self.at = At::Key,
                        b'}' => self.at = At::End { told: false },
                        _ => {
                            self.at = At::InValue { key, start: self.position, depth: 0, string: false };
                            continue;
                        }
                    }
                    self.position += 1;
                }
                At::InValue { key, start, depth, string } => match self.value(buffer, depth, string) {
                    Ok(end) => {
                        self.silence = 0;
                        return Ok(Some(Piece::Entry { key, value: (start, end) }));
                    }
                    Err((depth, string)) if self.position - start > MAX_EVENT => {
                        self.at = At::SkipValue { depth, string };
                        return Ok(Some(Piece::Skipped { start, end: self.position }));
                    }
                    Err((depth, string)) => {
                        self.at = At::InValue { key, start, depth, string };
                        return Ok(None);
                    }
                },
                At::SkipValue { depth, string } => {
                    if let Err((depth, string)) = self.value(buffer, depth, string) {
                        self.at = At::SkipValue { depth, string };
                        return Ok(None);
                    }
                    self.silence = 0;
                }
                At::Between => {
                    let Some(&byte) = buffer.get(self.position) else { return Ok(None) };
                    match byte {
                        b'{' => {
                            self.at = At::InEvent { start: self.position, depth: 0, string: false };
                            continue;
                        }
                        b']' => self.at = if self.list { At::End { told: false } } else { At::Key },
                        byte if byte == b',' || byte.is_ascii_whitespace() => self.quiet(1)?,
                        _ => {
                            self.at = At::InGarbage { start: self.position, depth: 0 };
                            continue;
                        }
                    }
                    self.position += 1;
                }
                At::InEvent { start, depth, string } => {
                    if let Some(end) = self.object(buffer, start, depth, string) {
                        self.silence = 0;
                        self.at = At::Between;
                        return Ok(Some(Piece::Event { start, end }));
                    }
                    if self.position - start > MAX_EVENT {
                        self.at = At::Between;
                        return Ok(Some(Piece::Oversized { start, end: self.position }));
                    }
                    return Ok(None);
                }
                At::InGarbage { start, mut depth } => {
                    // It ends with its line, before an event, or with the bracket that closes it.
                    let mut end = None;
                    while let Some(&byte) = buffer.get(self.position) {
                        match byte {
                            b'{' => end = Some(self.position),
                            b'\n' if depth == 0 => end = Some(self.position),
                            b']' if depth == 0 => end = Some(self.position),
                            b']' => {
                                depth -= 1;
                                end = (depth == 0).then_some(self.position + 1);
                            }
                            b'[' => depth += 1,
                            _ => {}
                        }
                        if let Some(end) = end {
                            self.position = end;
                            self.at = At::Between;
                            return Ok(Some(Piece::Garbage { start, end }));
                        }
                        self.position += 1;
                        self.quiet(1)?;
                    }
                    if self.position - start > MAX_EVENT {
                        self.at = At::InGarbage { start: self.position, depth };
                        return Ok(Some(Piece::Garbage { start, end: self.position }));
                    }
                    self.at = At::InGarbage { start, depth };
                    return Ok(None);
                }
                At::End { told } => {
                    let rest = &buffer[self.position..];
                    let blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0;
                    let Some(found) = rest.iter().position(|byte| !blank(byte)) else {
                        self.position = buffer.len();
                        return Ok(None);
                    };
                    let start = self.position + found;
                    if self.list && matches!(buffer[start], b',' | b'{') {
                        // A stray bracket had ended the list: more events follow.
                        self.position = start;
                        self.at = At::Between;
                        return Ok(Some(Piece::Garbage { start, end: start }));
                    }
                    self.position = buffer.len();
                    self.at = At::End { told: true };
                    if !told {
                        return Ok(Some(Piece::Garbage { start, end: start }));
                    }
                }
            }
        }
    }

    fn quiet(&mut self, bytes: usize) -> Result<(), NoTrace> {
        self.silence += bytes;
        if self.silence > MAX_SILENCE { Err(NoTrace) } else { Ok(()) }
    }

    /// Follows strings and braces to the end of the object.
    fn object(&mut self, buffer: &[u8], start: usize, mut depth: u32, mut string: bool) -> Option<usize> {
        let mut position = self.position;
        loop {
            if string {
                match end_of_string(buffer, position) {
                    Ok(after) => (position, string) = (after, false),
                    Err(stop) => {
                        position = stop;
                        break;
                    }
                }
            }
            // Most bytes outside strings are between two quotes: short, so one pass over them all beats many searches.
            let mut found = None;
            for at in memchr3_iter(b'"', b'{', b'}', &buffer[position..]) {
                match buffer[position + at] {
                    b'"' => {
                        found = Some(position + at + 1);
                        break;
                    }
                    b'{' => depth += 1,
                    _ => {
                        depth = depth.saturating_sub(1);
                        if depth == 0 {
                            self.position = position + at + 1;
                            return Some(self.position);
                        }
                    }
                }
            }
            match found {
                Some(after) => (position, string) = (after, true),
                None => {
                    position = buffer.len();
                    break;
                }
            }
        }
        self.position = position;
        self.at = At::InEvent { start, depth, string };
        None
    }

    /// Follows a value beside `traceEvents` to the comma or brace after it; how deep it is and whether in a string, where it
    /// goes on.
    fn value(&mut self, buffer: &[u8], mut depth: u32, mut string: bool) -> Result<usize, (u32, bool)> {
        let mut position = self.position;
        loop {
            if string {
                match end_of_string(buffer, position) {
                    Ok(after) => (position, string) = (after, false),
                    Err(stop) => {
                        position = stop;
                        break;
                    }
                }
            }
            let Some(&byte) = buffer.get(position) else { break };
            match byte {
                b'"' => string = true,
                b'{' | b'[' => depth = depth.saturating_add(1),
                b',' if depth == 0 => {
                    self.position = position + 1;
                    self.at = At::Key;
                    return Ok(position);
                }
                b'}' | b']' if depth == 0 => {
                    self.position = position + 1;
                    self.at = At::End { told: false };
                    return Ok(position);
                }
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            position += 1;
        }
        self.position = position;
        Err((depth, string))
    }
}

/// The place after a string that is open at `position`, or where to go on once there are more bytes.
fn end_of_string(buffer: &[u8], mut position: usize) -> Result<usize, usize> {
    loop {
        let Some(found) = memchr3(b'"', b'\\', b'\n', &buffer[position..]) else { return Err(buffer.len()) };
        let found = position + found;
        if buffer[found] != b'\\' {
            return Ok(found + 1);
        }
        if found + 1 >= buffer.len() {
            return Err(found);
        }
        position = found + 2;
    }
}

#[cfg(test)]
mod tests;
