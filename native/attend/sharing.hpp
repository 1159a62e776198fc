// Rows that share slots: which rows read the same memory, in which heads.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <tuple>
#include <vector>

#include "winnow_native.h"

namespace winnow {
namespace {

// Negative, zero or positive; zero where two parts are the same slots in the same memory, whichever of them heads read.
inline int compare_memory(const winnow_part& a, const winnow_part& b) {
  if (const int keys = std::memcmp(&a.keys, &b.keys, sizeof a.keys)) return keys;
  if (const int values = std::memcmp(&a.values, &b.values, sizeof a.values)) return values;
  if (a.packed != b.packed) return a.packed < b.packed ? -1 : 1;
  return a.slots < b.slots ? -1 : a.slots > b.slots;
}

// Slots [first, first + tokens) of one head of a part, and the rows that read them.
struct Reading {
  const winnow_part* part;
  int64_t first, tokens;
  const int64_t* rows;
  int64_t row_count;
};

// A part of a row, and whether other rows have it.
struct RowPart {
  const winnow_part* part;
  const winnow_part* first;  // in order of rows, of those that are of the same memory
  int64_t row;
  bool shared;
};

// The parts of all rows, those of the same memory side by side. Keeps its memory between calls.
class Sharing {
 public:
  void find(const winnow_decode_args& args) {
    own_.clear();
    shared_.clear();
    for (int64_t row = 0; row < args.rows; ++row) {
      for (int64_t i = args.part_bounds[row]; i < args.part_bounds[row + 1]; ++i) {
        own_.push_back({args.parts + i, args.parts + i, row, false});
      }
    }
    if (args.rows > 1) group();
  }

  // Parts that no other row reads, in order of rows.
  const std::vector<RowPart>& own() const { return own_; }

  // body(reading) for all slots of a head that are in the memory of several rows. Its rows are overwritten by the next.
  template <class Body>
  void for_shared(int64_t head, const Body& body) {
    for (auto part = shared_.begin(); part != shared_.end();) {
      const winnow_part* first = part->first;
      ranges_.clear();
      for (; part != shared_.end() && part->first == first; ++part) {
        ranges_.push_back({part->part->starts[head], part->part->stops[head], part->row, part->part});
      }
      for_equal_ranges(body);
    }
  }

 private:
  struct Range {
    int64_t start, stop, row;
    const winnow_part* part;
  };

  // In the order of rows, and not of addresses, which differ from run to run: results are summed up in this order.
  void group() {
    std::sort(own_.begin(), own_.end(), [](const RowPart& a, const RowPart& b) {
      const int memory = compare_memory(*a.part, *b.part);
      return memory ? memory < 0 : a.part < b.part;
    });
    for (size_t i = 1; i < own_.size(); ++i) {
      if (compare_memory(*own_[i - 1].part, *own_[i].part)) continue;
      own_[i].first = own_[i - 1].first;
      own_[i].shared = own_[i - 1].shared = true;
    }
    std::sort(own_.begin(), own_.end(), [](const RowPart& a, const RowPart& b) {
      return std::tie(a.first, a.part) < std::tie(b.first, b.part);
    });
    const auto is_shared = [](const RowPart& each) { return each.shared; };
    std::copy_if(own_.begin(), own_.end(), std::back_inserter(shared_), is_shared);
    own_.erase(std::remove_if(own_.begin(), own_.end(), is_shared), own_.end());
  }

  // Views of the same memory begin where they like, head by head.
  template <class Body>
  void for_equal_ranges(const Body& body) {
    const auto before = [](const Range& a, const Range& b) {
      return std::tie(a.start, a.stop, a.part) < std::tie(b.start, b.stop, b.part);
    };
    if (!std::is_sorted(ranges_.begin(), ranges_.end(), before)) std::sort(ranges_.begin(), ranges_.end(), before);
    for (auto range = ranges_.begin(); range != ranges_.end();) {
      const Range first = *range;
      rows_.clear();
      for (; range != ranges_.end() && range->start == first.start && range->stop == first.stop; ++range) {
        rows_.push_back(range->row);
      }
      if (first.start == first.stop) continue;
      body(Reading{first.part, first.start, first.stop - first.start, rows_.data(), static_cast<int64_t>(rows_.size())});
    }
  }

  std::vector<RowPart> own_, shared_;
  std::vector<Range> ranges_;
  std::vector<int64_t> rows_;
};

}  // namespace
}  // namespace winnow
