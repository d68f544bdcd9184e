#include "cpu/part_runner.h"

namespace onnxopt {

PartRunner::PartRunner(const DepthwisePart& part, const Program& program, const PlanCache& plans,
                       const void* const* inputs, std::int64_t width, std::int64_t channels)
    : part_(part), program_(program) {
  const Shape row{2, {width, channels}};
  domain_.count = static_cast<std::uint64_t>(width * channels);
  static unsigned char somewhere = 0;  // outputs that are written are told apart by not being null
  domain_.output[0] = &somewhere;
  domain_.input[0] = &somewhere;
  Collapse(row, row, &domain_.access[0]);
  for (std::size_t k = 0; k < part.reads.size(); ++k) {
    const DepthwiseRead& read = part.reads[k];
    const Shape one{1, {read.form == DepthwiseForm::kChannel ? channels : 1}};
    domain_.input[k + 1] = inputs[read.input];
    Collapse(read.form == DepthwiseForm::kElement ? row : one, row, &domain_.access[k + 1]);
  }
  tiling_ = Tile(program, domain_);
  plan_ = plans.For(tiling_.key);
}

void PartRunner::Run(const void* x, std::uint64_t first, void* y) const {
  Domain domain = domain_;
  domain.input[0] = x;
  domain.output[0] = y;
  for (std::size_t k = 0; k < part_.reads.size(); ++k) {
    if (part_.reads[k].form != DepthwiseForm::kElement) continue;
    domain.input[k + 1] = static_cast<const char*>(domain_.input[k + 1]) + first * Size(program_.inputs[k + 1]);
  }
  RunBlocks(program_, *plan_, tiling_, domain, 0, domain.count);
}

}  // namespace onnxopt
