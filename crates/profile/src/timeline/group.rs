//! Neighbouring slices of a row drawn as one.

use rustc_hash::FxHashMap;

/// What is drawn: one slice (`count` = 1), or several that are too close to be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Start of the first slice, ns.
    pub ts: i64,
    /// From the start of the first to the end of the last, ns.
    pub dur: i64,
    /// Row within the track.
    pub depth: i64,
    /// Time covered by slices, ns.
    pub busy: i64,
    /// Slices.
    pub count: i64,
    /// Number of the name that covers most.
    pub name: u32,
    /// Correlation of a single slice.
    pub correlation: Option<i64>,
}

impl Item {
    /// One slice. A negative duration covers nothing.
    pub fn slice(ts: i64, dur: i64, depth: i64, name: u32, correlation: Option<i64>) -> Self {
        Item { ts, dur, depth, busy: dur.max(0), count: 1, name, correlation }
    }

    /// End of the last slice, ns.
    pub fn end(&self) -> i64 {
        self.ts.saturating_add(self.dur.max(0))
    }
}

/// Merges the items of each row that start in one bucket of time. A slice that is as long as a bucket stays alone, so a row
/// has at most two items for each bucket, and only the last slice of an item can reach beyond the item's bucket.
pub struct Grouper {
    width: i64,
    /// The first rows' open items, and those of rows that no ordinary stack reaches.
    low: Vec<Open>,
    high: FxHashMap<i64, Open>,
    done: Vec<Item>,
}

/// Rows below this are found by their number.
const LOW_ROWS: usize = 256;

struct Open {
    bucket: i64,
    /// Nothing is open when its count is 0.
    item: Item,
    names: Names,
}

impl Grouper {
    /// Buckets of this width, ns.
    pub fn new(width: i64) -> Self {
        Self { width: width.max(1), low: Vec::new(), high: FxHashMap::default(), done: Vec::new() }
    }

    /// Width of a bucket, ns.
    pub fn width(&self) -> i64 {
        self.width
    }

    /// Items so far; those still open are not among them.
    pub fn len(&self) -> usize {
        self.done.len()
    }

    /// Items, those still open among them.
    pub fn len_at_end(&self) -> usize {
        let open = self.low.iter().chain(self.high.values()).filter(|open| open.item.count > 0).count();
        self.done.len() + open
    }

    /// Takes an item; those of a row come in the order of their starts.
    pub fn push(&mut self, item: Item) {
        let bucket = item.ts.div_euclid(self.width);
        let nothing = || Open { bucket, item: NOTHING, names: Names::default() };
        let open = match usize::try_from(item.depth) {
            Ok(row) if row < LOW_ROWS => {
                if self.low.len() <= row {
                    self.low.resize_with(row + 1, nothing);
                }
                &mut self.low[row]
            }
            _ => self.high.entry(item.depth).or_insert_with(nothing),
        };
        let alone = item.count == 1 && item.dur >= self.width;
        if open.item.count > 0 && (open.bucket != bucket || alone) {
            self.done.push(open.close());
        }
        if alone {
            self.done.push(item);
        } else if open.item.count == 0 {
            open.bucket = bucket;
            open.item = item;
        } else {
            open.add(item);
        }
    }

    /// All items, by start, then row.
    pub fn finish(mut self) -> Vec<Item> {
        for open in self.low.iter_mut().chain(self.high.values_mut()).filter(|open| open.item.count > 0) {
            self.done.push(open.close());
        }
        self.done.sort_unstable_by_key(|item| (item.ts, item.depth, item.dur, item.name));
        self.done
    }
}

const NOTHING: Item = Item { ts: 0, dur: 0, depth: 0, busy: 0, count: 0, name: 0, correlation: None };

impl Open {
    fn add(&mut self, item: Item) {
        if self.names.list.is_empty() {
            self.names.add(self.item.name, self.item.busy);
        }
        self.names.add(item.name, item.busy);
        let end = self.item.end().max(item.end());
        self.item.dur = end.saturating_sub(self.item.ts);
        self.item.busy = self.item.busy.saturating_add(item.busy);
        self.item.count = self.item.count.saturating_add(item.count);
        self.item.correlation = None;
    }

    fn close(&mut self) -> Item {
        let mut item = self.item;
        if let Some(name) = self.names.take_first() {
            item.name = name;
        }
        self.item.count = 0;
        item
    }
}

/// Busy time by name, in the order in which names came.
#[derive(Default)]
struct Names {
    list: Vec<(u32, i64)>,
    /// Places in the list, kept when it is long.
    places: FxHashMap<u32, usize>,
}

impl Names {
    /// Up to here a list is searched from its start.
    const SHORT: usize = 16;

    fn add(&mut self, name: u32, busy: i64) {
        let place = match self.list.len() <= Self::SHORT {
            true => self.list.iter().position(|(other, _)| *other == name),
            false => self.places.get(&name).copied(),
        };
        match place {
            Some(place) => self.list[place].1 = self.list[place].1.saturating_add(busy),
            None => {
                self.list.push((name, busy));
                if self.list.len() == Self::SHORT + 1 {
                    self.places = self.list.iter().enumerate().map(|(place, (name, _))| (*name, place)).collect();
                } else if self.list.len() > Self::SHORT {
                    self.places.insert(name, self.list.len() - 1);
                }
            }
        }
    }

    /// The name that covers most, the first of equals; forgets all.
    fn take_first(&mut self) -> Option<u32> {
        let first = self.list.iter().rev().max_by_key(|(_, busy)| *busy).map(|(name, _)| *name);
        self.list.clear();
        if !self.places.is_empty() {
            self.places = FxHashMap::default();
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(width: i64, slices: &[(i64, i64, u32)]) -> Vec<Item> {
        let mut grouper = Grouper::new(width);
        for &(ts, dur, name) in slices {
            grouper.push(Item::slice(ts, dur, 0, name, Some(ts)));
        }
        grouper.finish()
    }

    #[test]
    fn slices_of_one_bucket_become_one_item_and_long_ones_stay_alone() {
        let items = group(10, &[(0, 2, 1), (2, 3, 2), (6, 20, 3), (31, 1, 1), (40, 0, 5)]);
        assert_eq!(items.len(), 4);
        assert_eq!((items[0].ts, items[0].dur, items[0].busy, items[0].count, items[0].name), (0, 5, 5, 2, 2));
        assert_eq!(items[1], Item::slice(6, 20, 0, 3, Some(6)));
        assert_eq!(items[2], Item::slice(31, 1, 0, 1, Some(31)));
        assert_eq!(items[3], Item::slice(40, 0, 0, 5, Some(40)));
    }

    #[test]
    fn the_leading_name_is_found_among_many() {
        let mut slices: Vec<(i64, i64, u32)> = (0..200).map(|i| (i, 1, i as u32)).collect();
        slices.extend((200..300).map(|i| (i, 1, 77)));
        let items = group(1000, &slices);
        assert_eq!((items.len(), items[0].name, items[0].count, items[0].busy), (1, 77, 300, 300));
    }

    #[test]
    fn buckets_before_zero_are_as_wide_as_others() {
        let items = group(10, &[(-15, 1, 0), (-5, 1, 0), (5, 1, 0)]);
        assert_eq!(items.len(), 3);
    }
}
