#include <functional>
#include <vector>

#include "turbo/hyper_connection/hyper_connection.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class HyperConnectionChecks final : public OperatorChecks {
  void run() override {
    const HyperShape hyper{.streams = 2, .iterations = 3, .eps = 1e-6F, .norm_eps = 1e-6F};
    const Tensor streams = bf16({kTokens, 2 * kWidth});
    const Tensor y = bf16({kTokens, kWidth});
    const Tensor products = f32({kTokens, hyper.products()});
    const Tensor mixing = f32({kTokens, hyper.mixing()});
    const Tensor base = f32({hyper.products()});
    const Tensor scale = f32({hyper.scales()});
    const Tensor rstd = f32({kTokens});
    const auto shapes = []<class Call>() {
      return std::vector<std::function<void(Call&)>>{
          [](Call& a) { a.shape.streams = 9; }, [](Call& a) { a.shape.streams = 1; },
          [](Call& a) { a.shape.iterations = -1; }, [](Call& a) { a.shape.iterations = 65; }};
    };
    using Hr = HyperRead;
    expect_checks<Hr>({.shape = hyper,
                       .x = streams,
                       .products = products,
                       .base = base,
                       .scale = scale,
                       .y = y,
                       .mixing = mixing,
                       .rstd = rstd},
                      {&Hr::x, &Hr::products, &Hr::base, &Hr::scale, &Hr::y, &Hr::mixing, &Hr::rstd}, {},
                      shapes.operator()<Hr>());
    using Hb = HyperReadBackward;
    expect_checks<Hb>({.shape = hyper,
                       .x = streams,
                       .products = products,
                       .base = base,
                       .scale = scale,
                       .rstd = rstd,
                       .d_y = y,
                       .d_mixing = mixing,
                       .previous = streams,
                       .d_x = streams,
                       .d_products = products,
                       .d_base = products,
                       .d_scale = f32({kTokens, hyper.scales()})},
                      {&Hb::x, &Hb::products, &Hb::base, &Hb::scale, &Hb::rstd, &Hb::d_y, &Hb::d_mixing,
                       &Hb::previous, &Hb::d_x, &Hb::d_products, &Hb::d_base, &Hb::d_scale},
                      {}, shapes.operator()<Hb>());
    using Hw = HyperWrite;
    expect_checks<Hw>({.shape = hyper, .x = streams, .out = y, .mixing = mixing, .z = streams},
                      {&Hw::x, &Hw::out, &Hw::mixing, &Hw::z}, {}, shapes.operator()<Hw>());
    using Hg = HyperWriteBackward;
    expect_checks<Hg>(
        {.shape = hyper,
         .x = streams,
         .out = y,
         .mixing = mixing,
         .d_z = streams,
         .previous = streams,
         .d_x = streams,
         .d_out = y,
         .d_mixing = mixing},
        {&Hg::x, &Hg::out, &Hg::mixing, &Hg::d_z, &Hg::previous, &Hg::d_x, &Hg::d_out, &Hg::d_mixing}, {},
        shapes.operator()<Hg>());
  }
};

}  // namespace

extern const OperatorCheck kHyperConnection{"hyper_connection", make_checks<HyperConnectionChecks>};

}  // namespace primus::turbo::test
