// SPDX-License-Identifier: Apache-2.0
// How every benchmark reports a case: one JSON line. The ratio is above 1 where ours is better: peer / ours, of rates (a unit that ends in
// "/s") ours / peer.
//
//   print_json_line({.bench = "collectives", .name = "gloo all_reduce 4 B, 2 ranks", .ours = 120, .peer = 354, .unit = "us"});
//   {"bench": "collectives", "case": "gloo all_reduce 4 B, 2 ranks", "ours": 120, "peer": 354, "unit": "us", "ratio": 2.95}
#pragma once
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace hyper_parallel {

struct JsonLine {
  const char* bench;
  std::string name;
  double ours;
  std::optional<double> peer = {};  // of what ours is compared with, null otherwise
  const char* unit;
  std::optional<double> over_ns = {};  // left out if not given
};

inline void print_json_line(const JsonLine& line) {
  std::printf("{\"bench\": \"%s\", \"case\": \"%s\", \"ours\": %.5g, ", line.bench, line.name.c_str(), line.ours);
  const bool is_rate = std::string_view(line.unit).ends_with("/s");
  if (line.peer)
    std::printf("\"peer\": %.5g, \"unit\": \"%s\", \"ratio\": %.3g", *line.peer, line.unit,
                is_rate ? line.ours / *line.peer : *line.peer / line.ours);
  else
    std::printf("\"peer\": null, \"unit\": \"%s\", \"ratio\": null", line.unit);
  if (line.over_ns) std::printf(", \"over_ns\": %.0f", *line.over_ns);
  std::printf("}\n");
  std::fflush(stdout);
}

}  // namespace hyper_parallel
