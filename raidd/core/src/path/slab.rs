//! A fixed pool with small integer keys. Taking never allocates; an empty pool says no, which is all the back-pressure
//! there is.

/// A key that means "none".
pub const NONE: u32 = u32::MAX;

/// A pool of at most `capacity` values.
#[derive(Debug)]
pub struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// All memory is taken here.
    pub fn new(capacity: usize) -> Slab<T> {
        Slab {
            items: (0..capacity).map(|_| None).collect(),
            free: (0..capacity as u32).rev().collect(),
        }
    }

    /// Stores a value, or gives it back if the pool is empty.
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        match self.free.pop() {
            Some(key) => {
                self.items[key as usize] = Some(value);
                Ok(key)
            }
            None => Err(value),
        }
    }

    /// Takes a value out.
    ///
    /// # Panics
    /// If the key is not in use: that is a bug of the caller.
    pub fn remove(&mut self, key: u32) -> T {
        let value = self.items[key as usize].take().expect("slab key in use");
        self.free.push(key);
        value
    }

    /// Free places.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// All places.
    pub fn capacity(&self) -> usize {
        self.items.len()
    }

    /// Places in use.
    pub fn in_use(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// The value, if the key is in use.
    pub fn get(&self, key: u32) -> Option<&T> {
        self.items.get(key as usize).and_then(Option::as_ref)
    }
}

impl<T> Slab<T> {
    /// The value, if the key is in use.
    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.items.get_mut(key as usize).and_then(Option::as_mut)
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, key: u32) -> &T {
        self.items[key as usize].as_ref().expect("slab key in use")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, key: u32) -> &mut T {
        self.items[key as usize].as_mut().expect("slab key in use")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_pool_says_no_and_a_returned_place_is_used_again() {
        let mut s = Slab::new(2);
        let a = s.insert('a').unwrap();
        let b = s.insert('b').unwrap();
        assert_eq!(s.insert('c'), Err('c'));
        assert_eq!((s[a], s[b], s.in_use(), s.available()), ('a', 'b', 2, 0));
        assert_eq!(s.remove(a), 'a');
        assert!(s.get(a).is_none());
        assert_eq!(s.insert('c'), Ok(a));
    }
}
