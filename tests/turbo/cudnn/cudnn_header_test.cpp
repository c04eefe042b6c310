// If NVIDIA's header is installed, compares our declarations of cuDNN's interface with this header.
#include <cudnn.h>
#include <gtest/gtest.h>

#include "turbo/cudnn/library.h"

namespace primus::turbo::cudnn {
namespace {

template <class Ours, class Theirs>
constexpr bool equal(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

#define SAME(type, ours, theirs) static_assert(equal(type::ours, theirs))
SAME(Status, kSuccess, CUDNN_STATUS_SUCCESS);
SAME(DescriptorType, kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
SAME(DescriptorType, kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
SAME(DescriptorType, kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
SAME(DescriptorType, kEngineHeuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
SAME(DescriptorType, kExecutionPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
SAME(DescriptorType, kOperationPointwise, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
SAME(DescriptorType, kOperationGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
SAME(DescriptorType, kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
SAME(DescriptorType, kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
SAME(DescriptorType, kMatmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
SAME(DescriptorType, kOperationMatmul, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
SAME(DescriptorType, kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
SAME(DescriptorType, kOperationReduction, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
SAME(DescriptorType, kOperationReshape, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
SAME(Attribute, kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE);
SAME(Attribute, kPointwiseMathPrecision, CUDNN_ATTR_POINTWISE_MATH_PREC);
SAME(Attribute, kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS);
SAME(Attribute, kHeuristicsMode, CUDNN_ATTR_ENGINEHEUR_MODE);
SAME(Attribute, kHeuristicsGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
SAME(Attribute, kHeuristicsResults, CUDNN_ATTR_ENGINEHEUR_RESULTS);
SAME(Attribute, kEngineConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE);
SAME(Attribute, kPlanEngineConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
SAME(Attribute, kPlanWorkspaceSize, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
SAME(Attribute, kOperationPointwiseDescriptor, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
SAME(Attribute, kOperationPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
SAME(Attribute, kOperationPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
SAME(Attribute, kOperationPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
SAME(Attribute, kOperationPointwiseT, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
SAME(Attribute, kGraphOperations, CUDNN_ATTR_OPERATIONGRAPH_OPS);
SAME(Attribute, kTensorByteAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
SAME(Attribute, kTensorDataType, CUDNN_ATTR_TENSOR_DATA_TYPE);
SAME(Attribute, kTensorDimensions, CUDNN_ATTR_TENSOR_DIMENSIONS);
SAME(Attribute, kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES);
SAME(Attribute, kTensorUniqueId, CUDNN_ATTR_TENSOR_UNIQUE_ID);
SAME(Attribute, kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
SAME(Attribute, kTensorIsByValue, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
SAME(Attribute, kTensorRaggedOffset, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC);
SAME(Attribute, kVariantPackUniqueIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
SAME(Attribute, kVariantPackPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
SAME(Attribute, kVariantPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
SAME(Attribute, kEngineGlobalIndex, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
SAME(Attribute, kEngineNumericalNote, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
SAME(Attribute, kMatmulComputeType, CUDNN_ATTR_MATMUL_COMP_TYPE);
SAME(Attribute, kMatmulPaddingValue, CUDNN_ATTR_MATMUL_PADDING_VALUE);
SAME(Attribute, kOperationMatmulA, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
SAME(Attribute, kOperationMatmulB, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
SAME(Attribute, kOperationMatmulC, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
SAME(Attribute, kOperationMatmulDescriptor, CUDNN_ATTR_OPERATION_MATMUL_DESC);
SAME(Attribute, kOperationMatmulRows, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
SAME(Attribute, kOperationMatmulCols, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
SAME(Attribute, kOperationMatmulDepth, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
SAME(Attribute, kReductionOperator, CUDNN_ATTR_REDUCTION_OPERATOR);
SAME(Attribute, kReductionComputeType, CUDNN_ATTR_REDUCTION_COMP_TYPE);
SAME(Attribute, kOperationReductionX, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
SAME(Attribute, kOperationReductionY, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
SAME(Attribute, kOperationReductionDescriptor, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
SAME(Attribute, kOperationReshapeX, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
SAME(Attribute, kOperationReshapeY, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
SAME(AttributeType, kHandle, CUDNN_TYPE_HANDLE);
SAME(AttributeType, kDataType, CUDNN_TYPE_DATA_TYPE);
SAME(AttributeType, kBool, CUDNN_TYPE_BOOLEAN);
SAME(AttributeType, kInt64, CUDNN_TYPE_INT64);
SAME(AttributeType, kDouble, CUDNN_TYPE_DOUBLE);
SAME(AttributeType, kVoidPointer, CUDNN_TYPE_VOID_PTR);
SAME(AttributeType, kHeuristicsMode, CUDNN_TYPE_HEUR_MODE);
SAME(AttributeType, kNumericalNote, CUDNN_TYPE_NUMERICAL_NOTE);
SAME(AttributeType, kPointwiseMode, CUDNN_TYPE_POINTWISE_MODE);
SAME(AttributeType, kDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
SAME(AttributeType, kReductionOperator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
SAME(DataType, kF32, CUDNN_DATA_FLOAT);
SAME(DataType, kF16, CUDNN_DATA_HALF);
SAME(DataType, kI32, CUDNN_DATA_INT32);
SAME(DataType, kBF16, CUDNN_DATA_BFLOAT16);
SAME(DataType, kBool, CUDNN_DATA_BOOLEAN);
SAME(HeuristicsMode, kA, CUDNN_HEUR_MODE_A);
SAME(NumericalNote, kNonDeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
SAME(ReductionOperator, kAdd, CUDNN_REDUCE_TENSOR_ADD);
SAME(ReductionOperator, kMax, CUDNN_REDUCE_TENSOR_MAX);
SAME(PointwiseMode, kAdd, CUDNN_POINTWISE_ADD);
SAME(PointwiseMode, kMultiply, CUDNN_POINTWISE_MUL);
SAME(PointwiseMode, kMax, CUDNN_POINTWISE_MAX);
SAME(PointwiseMode, kDivide, CUDNN_POINTWISE_DIV);
SAME(PointwiseMode, kSubtract, CUDNN_POINTWISE_SUB);
SAME(PointwiseMode, kExp, CUDNN_POINTWISE_EXP);
SAME(PointwiseMode, kLog, CUDNN_POINTWISE_LOG);
SAME(PointwiseMode, kIdentity, CUDNN_POINTWISE_IDENTITY);
SAME(PointwiseMode, kGreater, CUDNN_POINTWISE_CMP_GT);
SAME(PointwiseMode, kGreaterOrEqual, CUDNN_POINTWISE_CMP_GE);
SAME(PointwiseMode, kLess, CUDNN_POINTWISE_CMP_LT);
SAME(PointwiseMode, kAnd, CUDNN_POINTWISE_LOGICAL_AND);
SAME(PointwiseMode, kIndex, CUDNN_POINTWISE_GEN_INDEX);
SAME(PointwiseMode, kSelect, CUDNN_POINTWISE_BINARY_SELECT);
#undef SAME
static_assert(sizeof(Descriptor) == sizeof(cudnnBackendDescriptor_t) &&
              sizeof(Handle) == sizeof(cudnnHandle_t));
static_assert(sizeof(DataType) == sizeof(cudnnDataType_t) &&
              sizeof(PointwiseMode) == sizeof(cudnnPointwiseMode_t));
static_assert(sizeof(NumericalNote) == sizeof(cudnnBackendNumericalNote_t));

// The attributes for our handles have names that are deprecated in NVIDIA's header.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static_assert(equal(Attribute::kGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE));
static_assert(equal(Attribute::kPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE));
#pragma GCC diagnostic pop

TEST(CudnnHeader, FunctionTypesAgree) {
  // Declarations are compared at compile time. This test compares the sizes of function pointers.
  EXPECT_EQ(sizeof(std::size_t(*)()), sizeof(&cudnnGetVersion));
  EXPECT_LE(kOldestVersion, static_cast<std::size_t>(CUDNN_VERSION));
}

}  // namespace
}  // namespace primus::turbo::cudnn
