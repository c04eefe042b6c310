// Divides the keys of each document into tiles that begin at its first key, on GPUs. The tiles of a query
// then do not depend on the position of its document in a sequence (DeviceSpec::batch_invariant).
#pragma once

#include "turbo/attention/gpu_runs.h"
#include "turbo/attention/gpu_visibility.h"

namespace primus::turbo::PRIMUS_GPU {

// Iterates over the tiles of kKeys keys that some queries of a sequence see, document by document. Keys
// [key, end) of the current tile belong to its document; later keys must be masked.
template <int kKeys>
struct DocumentTiles {
  const Visibility& of;
  int sequence, row, end_row;  // the first query of the current document, and the end of the queries
  int next_row;                // the first query of the next document
  int document;                // its first key
  int key, end;

  PRIMUS_DEVICE DocumentTiles(const Visibility& visibility, int of_sequence, int first_row, int rows)
      : of(visibility), sequence(of_sequence), row(first_row), end_row(first_row + rows) {
    open();
  }

  PRIMUS_DEVICE void next() {
    key += kKeys;
    if (key < end) return;
    row = next_row;
    if (row < end_row) open();
  }

  // Returns whether the current tile is the first of a run (gpu_runs.h) and earlier keys of the document
  // belong to earlier runs. The queries of a document see no key of another document, so that their first run
  // may continue the run of another document.
  PRIMUS_DEVICE bool begins_run() const { return key > document && (key - document) % kRunKeys == 0; }

  // Returns the number of tiles from the current tile on, and moves to the end.
  PRIMUS_DEVICE int count() {
    int all = 0;
    while (row < end_row) {
      all += (end - key + kKeys - 1) / kKeys;
      row = next_row;
      if (row < end_row) open();
    }
    return all;
  }

 private:
  PRIMUS_DEVICE void open() {
    document = of.document(sequence, row);
    int low = row + 1, high = end_row;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (of.document(sequence, middle) > document) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    next_row = low;
    const int begin = static_cast<int>(of.keys(sequence, row).begin);
    key = document + (begin - document) / kKeys * kKeys;
    end = static_cast<int>(of.keys(sequence, low - 1).end);
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
